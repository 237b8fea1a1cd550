"""What the plan says of sampling is what is asked of the engines."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rlrun.backends.base import GenerateRequest
from rlrun.backends.fake import FakeEngine
from rlrun.data.selection import Hooks
from rlrun.data.types import Prompt
from rlrun.plan.build import load_plan
from rlrun.runtime.assemble import _agent
from rlrun.runtime.inputs import Inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "plan"))
from pinned import PINNED


class Recorder(FakeEngine):
    def __init__(self):
        super().__init__(positions=64, vocab_size=14)
        self.requests: list[GenerateRequest] = []

    async def generate(self, request):
        self.requests.append(request)
        return await super().generate(request)


@pytest.mark.parametrize("stream", ["train", "eval"])
def test_evaluation_samples_as_eval_says_and_training_as_rollout_says(stream):
    words = ["eval.temperature=0.5", "eval.top_p=0.9", "eval.top_k=7", "eval.samples_per_prompt=3"]
    plan = load_plan([*PINNED, *words, "rollout.temperature=0.8"])
    engine, prompt = Recorder(), Prompt(1, ({"role": "user", "content": "01"},), (3, 4), "10")
    inputs = Inputs(None, [prompt], [prompt], lambda prompt, text, label: 0.0, Hooks())
    asyncio.run(_agent(plan, engine, inputs, stream).collect([prompt], step=1))
    [request] = engine.requests
    found = (request.temperature, request.top_p, request.top_k, len(request.seeds))
    assert found == {"train": (0.8, 1.0, -1, 8), "eval": (0.5, 0.9, 7, 3)}[stream]
