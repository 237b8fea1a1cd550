"""Shared by all tests: no network, no colour, and the repository's own conf/ and recipes/."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NO_COLOR", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
