"""The trainer's state leaves an NVIDIA GPU and comes back bit for bit, and the memory is there for others."""

from __future__ import annotations

import pytest
import torch
from megatron_plans import SPEC, make_plan
from test_parking import compare, nothing_left

pytestmark = pytest.mark.gpu

MIB = 2**20


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parked_after_every_step_it_is_the_same_bit_for_bit(ranks, checkpoints, dtype):
    import megatron_reference as hf

    batches = [hf.make_batch(checkpoints["tied"], seed) for seed in range(3)]
    plan = make_plan(device="cuda", dtype=dtype)
    stayed, parked = (ranks.run(1, "turns", plan, checkpoints["tied"], batches, [], parks) for parks in (False, True))
    compare(stayed, parked)
    nothing_left(parked[0], shared=dtype == "float32")


def test_the_gpu_is_free_for_others(ranks, tmp_path):
    """A model of 0.1 B parameters: 18 bytes each while it trains, nothing but the context while it is parked."""
    from dataclasses import replace

    from rlrun.data.tiny_model import make_random_model
    from rlrun.plan.parameters import count_parameters

    spec = replace(SPEC, hidden_size=1024, ffn_hidden_size=3072, num_layers=8, vocab_size=32000, tied_embeddings=True)
    spec = replace(spec, num_parameters=count_parameters(spec))
    plan = make_plan(device="cuda", dtype="bfloat16", spec=spec, uses_reference=False)
    make_random_model(str(tmp_path / "model"), spec, "0123456789 ", seed=1, dtype="bfloat16")
    [found] = ranks.run(1, "room", plan, str(tmp_path / "model"))
    state = 18 * spec.num_parameters
    assert found["whole"]["gpu_reserved"] > 0.9 * state
    freed = found["whole"]["gpu_used"] - found["parked"]["gpu_used"]
    assert freed > 0.95 * (found["whole"]["gpu_reserved"] - 64 * MIB)
    assert found["parked"]["gpu_reserved"] < 64 * MIB
    kept = found["for the push"]["gpu_reserved"]
    assert 2 * spec.num_parameters < kept < 3 * spec.num_parameters + 64 * MIB
    print(f"park {found['park_s']:.3f} s, unpark {found['unpark_s']:.3f} s for {14 * spec.num_parameters / 1e9:.2f} GB")
