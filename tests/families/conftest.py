"""Lets the tests here import their helpers, and gives them the reference of every family, made once a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """name of a fixture -> `hf_process.Reference`."""
    from hf_process import make_references

    return make_references(tmp_path_factory.mktemp("references"))
