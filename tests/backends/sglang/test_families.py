"""Real SGLang servers on CPU for the families, against Hugging Face, before and after weight syncs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from family_engine import FamilyEngine, family_plan
from family_models import Reference

pytestmark = pytest.mark.engines

FP32 = 1e-4
ALPHABET = "0123456789 "
TOKENS = [1, 4, 13, 5, 1, 3, 7, 9, 11, 6, 12, 8, 3, 3, 10, 4, 5, 9, 1, 13, 12, 7]
SERVED = ("qwen3_moe", "qwen3_5", "qwen3_5_moe", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "minimax_m2")


@pytest.mark.parametrize("family", SERVED)
def test_a_family_is_served_as_hugging_face_computes_it(family, tmp_path):
    """Prefill and decode of the checkpoint, seeded samples, then whole syncs: by value in small buckets, of an engine
    that had made room for the trainer, and by gloo."""
    reference = Reference(family_plan(family).model.spec, ALPHABET)
    with FamilyEngine(family, reference.save(str(tmp_path / "model")), str(tmp_path)) as engine:
        before = reference.logprobs(TOKENS)
        np.testing.assert_allclose(engine.score(TOKENS), before, atol=FP32)
        samples = engine.generate(TOKENS[:6], range(16))
        for sample in samples:
            expected = reference.logprobs([*TOKENS[:6], *sample.token_ids])[5:]
            np.testing.assert_allclose(sample.logprobs, expected, atol=FP32)
        for seed in (0, 5, 11):  # bit for bit, alone as in its group
            [alone] = engine.generate(TOKENS[:6], [seed])
            assert (alone.token_ids, alone.logprobs) == (samples[seed].token_ids, samples[seed].logprobs)
        for backend, bucket_bytes in (("value", 20_000), ("gloo", 1 << 26)):
            reference.perturb(bucket_bytes, 0.5)
            if backend == "value":  # what SGLang keeps beside the weights has to follow from the push as well
                engine.server.release_memory(60.0)
                engine.server.resume_memory(("weights",), 60.0)
            engine.push(reference.named_tensors(), backend=backend, bucket_bytes=bucket_bytes)
            if backend == "value":
                engine.server.resume_memory(("kv_cache", "cuda_graph"), 60.0)
            after = reference.logprobs(TOKENS)
            assert np.abs(after - before).max() > 0.1
            np.testing.assert_allclose(engine.score(TOKENS), after, atol=FP32)
            before = after


@pytest.mark.parametrize("family", ["glm4_moe", "glm4_moe_lite"])
def test_a_new_router_is_used_at_once(family, tmp_path):
    """SGLang routes by a float32 copy of these families' routers, made at the first forward pass. In float32 the copy
    is the weight itself, so this runs in bfloat16: after each way of updating, the engine computes what a new engine
    computes from the same checkpoint."""
    bf16 = ["model.dtype=bfloat16"]
    reference = Reference(family_plan(family).model.spec, ALPHABET)
    old, new = tmp_path / "old", tmp_path / "new"
    reference.save(str(old), torch.bfloat16)
    first = reference.named_tensors(torch.bfloat16)
    routers = [name for name, _ in first if name.endswith("mlp.gate.weight")]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in reference.model.named_parameters():
            if name in routers:
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    reference.perturb(4, 0.2)  # float32 router biases among them, in a bfloat16 stream
    reference.save(str(new), torch.bfloat16)
    second = reference.named_tensors(torch.bfloat16)

    engine = FamilyEngine(family, str(old), str(tmp_path / "logs"), bf16)
    fresh = FamilyEngine(family, str(new), str(tmp_path / "fresh"), bf16)
    engine.start()
    try:
        with fresh:
            changed = fresh.score(TOKENS)
        before = engine.wait().score(TOKENS)
        assert np.abs(changed - before).max() > 0.1
        for update in (
            lambda weights, directory: engine.push(weights),
            lambda weights, directory: engine.push(weights, backend="gloo"),
            lambda weights, directory: engine.load_from_disk(str(directory)),
        ):
            update(second, new)
            np.testing.assert_allclose(engine.score(TOKENS), changed, atol=1e-6)
            update(first, old)
            np.testing.assert_allclose(engine.score(TOKENS), before, atol=1e-6)
    finally:
        engine.stop()
