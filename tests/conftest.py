"""Shared by all tests: no network, no colour, and the repository's own conf/ and recipes/."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NO_COLOR", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# No deadline: a busy machine is not a failing property. Tests that need more examples say so themselves.
settings.register_profile("rlrun", max_examples=30, deadline=None)
settings.load_profile("rlrun")
