from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_engine import FakeEngine


@pytest.fixture
def fake_engine():
    made = []

    def make(**options) -> FakeEngine:
        made.append(FakeEngine(**options))
        return made[-1]

    yield make
    for engine in made:
        engine.server.shutdown()
        engine.server.server_close()
