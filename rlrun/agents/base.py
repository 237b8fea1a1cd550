"""What turns prompts into rewarded samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlrun.data.types import Group, Prompt


class Agent(Protocol):
    async def collect(self, prompts: Sequence[Prompt], *, step: int, first_position: int = 0) -> list[Group]:
        """One group for each prompt, in their order, generated and rewarded.

        A rollout may come back as several samples, which then share its `rollout_id` and its reward; ids are unique
        within a group. `step` and the place of a prompt in the step, counted from `first_position`, enter the seeds of
        a seeded rollout. Raises RunFailed, after cancelling what is still in flight, when a
        prompt cannot be completed.
        """
        ...
