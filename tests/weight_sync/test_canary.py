from __future__ import annotations

import numpy as np
import pytest

from rlrun.errors import RunFailed
from rlrun.weight_sync.canary import check_canary

TRAINER = np.log(np.linspace(0.1, 0.9, 8))


def test_equal_logprobs_pass_and_the_largest_difference_is_reported():
    other = TRAINER.copy()
    other[2] += 5e-5
    metrics = check_canary(TRAINER, [TRAINER, other], "float32", version=3)
    assert metrics["max_abs_diff"] == pytest.approx(5e-5)
    assert metrics["mean_abs_diff"] == pytest.approx(5e-5 / 8)


def test_one_wrong_token_fails_float32_with_the_numbers():
    wrong = TRAINER.copy()
    wrong[5] -= 0.01
    with pytest.raises(RunFailed) as error:
        check_canary(TRAINER, [TRAINER, wrong], "float32", version=7)
    assert error.value.part == "engine 1"
    assert "version 7" in error.value.summary
    assert "difference 0.01 over 8 tokens, limit 0.0001 in float32; worst at token 5" in error.value.summary


def test_bfloat16_looks_at_the_mean():
    noisy = TRAINER.copy()
    noisy[0] += 0.3  # mean 0.0375
    check_canary(TRAINER, [noisy], "bfloat16", version=1)
    with pytest.raises(RunFailed, match=r"mean log-prob difference 0.06"):
        check_canary(TRAINER, [TRAINER + 0.06], "bfloat16", version=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_nan_never_passes(dtype):
    broken = TRAINER.copy()
    broken[4] = np.nan
    with pytest.raises(RunFailed, match="token 4"):
        check_canary(TRAINER, [broken], dtype, version=1)


def test_a_wrong_number_of_logprobs_is_named():
    with pytest.raises(RunFailed, match="has 7 log-probs, the trainer 8"):
        check_canary(TRAINER, [TRAINER[1:]], "float32", version=1)
