"""What turns prompts into rewarded samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlrun.data.types import Group, Prompt


class Agent(Protocol):
    async def collect(self, prompts: Sequence[Prompt], *, step: int) -> list[Group]:
        """One group for each prompt, in their order, generated and rewarded.

        `step` enters the seeds of a seeded rollout. Raises RunFailed, after cancelling what is still in flight, when a
        prompt cannot be completed.
        """
        ...
