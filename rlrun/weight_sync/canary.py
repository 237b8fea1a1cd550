"""The canary: engine and trainer must give a fixed token sequence the same log-probs after every weight sync.

A version number says that a sync was applied; only log-probs say that the weights arrived in the right places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlrun.errors import RunFailed

FP32_MAX_DIFF = 1e-4
"""Ten times what was seen between Megatron, Hugging Face and SGLang in float32."""
BF16_MEAN_DIFF = 0.05
"""Four times the mean difference seen in bfloat16; single tokens differ by more."""


def check_canary(
    trainer_logprobs: Sequence[float], engine_logprobs: Sequence[Sequence[float]], dtype: str, version: int
) -> dict[str, float]:
    """Compares [T] trainer log-probs with every engine's, all of the same T tokens at temperature 1.

    float32: the largest absolute difference is at most 1e-4. bfloat16: the mean one is at most 0.05. Returns the
    largest of both over the engines. Raises RunFailed naming the engine (by position), the token and both numbers; a
    NaN never passes.
    """
    trainer = np.asarray(trainer_logprobs, dtype=np.float64)
    assert trainer.ndim == 1, trainer.shape
    assert trainer.size > 0, "a canary without tokens"
    assert dtype in ("float32", "bfloat16"), dtype
    worst_max = worst_mean = 0.0
    for index, logprobs in enumerate(engine_logprobs):
        engine = np.asarray(logprobs, dtype=np.float64)
        if engine.shape != trainer.shape:
            raise RunFailed(f"engine {index}", f"the canary has {engine.size} log-probs, the trainer {trainer.size}")
        diff = np.abs(engine - trainer)
        largest, mean = float(diff.max()), float(diff.mean())
        value, limit, kind = (
            (largest, FP32_MAX_DIFF, "largest") if dtype == "float32" else (mean, BF16_MEAN_DIFF, "mean")
        )
        if not value <= limit:
            at = int(np.argmax(np.nan_to_num(diff, nan=np.inf)))
            raise RunFailed(
                f"engine {index}",
                f"version {version} does not compute what the trainer computes: {kind} log-prob difference "
                f"{value:.3g} over {trainer.size} tokens, limit {limit:g} in {dtype}; worst at token {at}: "
                f"engine {engine[at]:.5f}, trainer {trainer[at]:.5f}",
                "the weight mapping or the transfer is wrong; nothing sampled from this engine should be trained on",
            )
        worst_max, worst_mean = max(worst_max, largest), max(worst_mean, mean)
    return {"max_abs_diff": worst_max, "mean_abs_diff": worst_mean}
