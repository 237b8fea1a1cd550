"""The critic, decided."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.plan.parts.train import OptimizerPlan


@dataclass(frozen=True)
class CriticPlan:
    """A second network on the slots of the trainer, in its layout: rank r of one sits beside rank r of the other."""

    path: str | None  # local folder; None: starts from the policy's initial weights
    value_clip: float | None
    critic_only_steps: int  # steps of the loop
    optimizer: OptimizerPlan
