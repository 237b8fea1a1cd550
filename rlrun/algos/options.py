"""What a policy loss is told: numbers and names, decided by the plan. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImportanceOptions:
    """Correction by w = exp(old_logprobs - rollout_logprobs); see `rlrun.algos.importance`."""

    correction: str  # tis | icepop | mask | none (which leaves the veto)
    level: str  # token | sequence | geometric
    low: float
    high: float
    veto: float | None


@dataclass(frozen=True)
class LossOptions:
    kind: str  # ppo_clip | gspo | cispo | package.module:name | sft
    clip_low: float
    clip_high: float
    dual_clip: float | None
    entropy_coef: float
    kl_coef: float
    kl_estimator: str  # k1 | k2 | k3 | low_var
    kl_unbiased: bool
    importance: ImportanceOptions | None  # None when nothing is corrected
    opsm_delta: float | None
