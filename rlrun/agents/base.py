"""What an agent is: prompts in, rewarded samples out. Agents know neither the trainer nor the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlrun.data.types import Group, Prompt


class Agent(Protocol):
    async def rollout(self, prompt: Prompt, *, step: int, position: int) -> Group:
        """All samples of one prompt, rewarded. `position` is its place among the prompts of the step: a prompt may be
        drawn twice in one step. Raises RunFailed."""
        ...

    async def collect(self, prompts: Sequence[Prompt], *, step: int) -> list[Group]:
        """One group a prompt, in the order of `prompts`. Raises RunFailed naming the prompt that failed; nothing is
        left running then, nor when it is cancelled."""
        ...
