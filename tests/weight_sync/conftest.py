from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_engine import FakeEngine


@pytest.fixture
def fake_engine(tmp_path):
    made = []

    def make(**options) -> FakeEngine:
        made.append(FakeEngine(folder=str(tmp_path), **options))
        return made[-1]

    yield make
    for engine in made:
        engine.server.shutdown()
        engine.server.server_close()
