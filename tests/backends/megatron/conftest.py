"""Lets the tests here import their helpers, and gives them one pool of rank processes for the session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def ranks():
    from megatron_ranks import RankPool

    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """name -> folder of a random Qwen3 checkpoint, made once."""
    from megatron_reference import make_checkpoint

    root = tmp_path_factory.mktemp("checkpoints")
    return {name: make_checkpoint(root / name, tied=name == "tied") for name in ("tied", "untied")}
