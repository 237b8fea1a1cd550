"""`python -m rlrun`, the same as the `rlrun` command."""

from __future__ import annotations

import sys

from rlrun.cli import main

if __name__ == "__main__":
    sys.exit(main())
