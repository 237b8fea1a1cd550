"""The Megatron trainer against Hugging Face, torch autograd and torch AdamW, in every layout two processes allow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from megatron_plans import SPEC, make_plan, world

from rlrun.algos.options import ImportanceOptions
from rlrun.plan.types import TeacherPlan

pytestmark = pytest.mark.engines

LAYOUTS = {
    "tp1": {},
    "tp2": {"tp": 2},
    "tp2_sp": {"tp": 2, "sequence_parallel": True},
    "pp2": {"pp": 2},
    "dp2": {"dp": 2},
    "cp2": {"cp": 2},
}
RECOMPUTED = ("tp1", "tp2_sp", "pp2", "cp2")
NEAR = 1e-5


def with_loss(plan, **options):
    return replace(plan, algo=replace(plan.algo, loss=replace(plan.algo.loss, **options)))


CORRECTED = ImportanceOptions("tis", "sequence", 0.9, 1.1, veto=0.8)
LOSSES = {
    "ppo_clip": {},
    "gspo": {"kind": "gspo", "clip_low": 0.02, "clip_high": 0.03, "importance": CORRECTED},
    "cispo": {"kind": "cispo", "entropy_coef": 0.2, "opsm_delta": 0.01},
}


def reported(results, key):
    return {r["info"].dp: r[key] for r in results if r["info"].reports}


@pytest.fixture(scope="module")
def reference(checkpoints):
    """Per checkpoint: batches of three optimizer steps, what torch makes of them, and the log-probs before."""
    import megatron_reference as hf

    made = {}
    for name, directory in checkpoints.items():
        batches = [hf.make_batch(directory, seed) for seed in range(3)]
        plan = make_plan(tied=name == "tied")
        history, weights = hf.train(directory, batches, plan.algo)
        model = hf.load(directory)
        with torch.no_grad():
            logprobs = [hf.token_logprobs(model, t, hf.TEMPERATURE).numpy() for t in batches[0].tokens]
        made[name] = {"batches": batches, "history": history, "weights": weights, "logprobs": logprobs, "model": model}
    return made


@pytest.mark.parametrize(("name", "batching"), [("tied", "packed"), ("tied", "padded"), ("untied", "packed")])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_training_equals_hugging_face_and_torch_adamw(ranks, checkpoints, reference, name, layout, batching):
    """Log-probs, every metric of three steps, the weights after them, and the reference that stays what it was."""
    plan = make_plan(tied=name == "tied", batching=batching, **LAYOUTS[layout])
    expected = reference[name]
    results = ranks.run(world(plan), "train", plan, checkpoints[name], expected["batches"])

    for dp, values in reported(results, "logprobs").items():
        mine = expected["logprobs"][dp :: plan.train.dp]
        assert [len(v) for v in values] == [len(e) for e in mine]
        assert max(np.abs(v - e).max() for v, e in zip(values, mine, strict=True)) < NEAR
    for silent in (r for r in results if not r["info"].reports):
        assert silent["logprobs"] == []
    assert all(r["metrics"] == results[0]["metrics"] for r in results), "ranks disagree"
    for step, want in zip(results[0]["metrics"], expected["history"], strict=True):
        assert step.keys() == want.keys()
        for key in want:
            assert step[key] == pytest.approx(want[key], rel=1e-4, abs=2e-5), key
    for key, want in expected["weights"].items():
        difference = np.abs(results[0]["after"][key] - want.numpy()).max()
        assert difference < 1e-4, f"{key} {difference}"
    before, after = reported(results, "logprobs"), reported(results, "logprobs_after")
    moved = max(np.abs(a - b).max() for a, b in zip(before[0], after[0], strict=True))
    assert moved > 1e-2, "nothing was learned"
    reference_before = reported(results, "reference")
    for dp, values in reported(results, "reference_after").items():
        assert all(np.array_equal(v, b) for v, b in zip(values, reference_before[dp], strict=True)), "it moved"
        assert max(np.abs(v - b).max() for v, b in zip(values, before[dp], strict=True)) < NEAR


def hf_gradients(reference, name, plan):
    import megatron_reference as hf

    model = reference[name]["model"]
    model.zero_grad()
    loss, metrics = hf.loss_and_metrics(model, reference[name]["batches"][0], plan.algo)
    loss.backward()
    return metrics, {n: p.grad.numpy().copy() for n, p in model.named_parameters()}


def relative(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize(
    "layout",
    [*LAYOUTS, *(f"{x}_padded" for x in ("tp1", "tp2", "pp2", "cp2")), *(f"{x}_recompute" for x in RECOMPUTED)],
)
def test_the_gradient_of_every_parameter_equals_autograd_of_hugging_face(ranks, checkpoints, reference, name, layout):
    """Sharded, padded and recomputed alike; dp 2 without a distributed optimizer, so that every rank holds the sum."""
    settings = dict(LAYOUTS[layout.replace("_padded", "").replace("_recompute", "")])
    settings["batching"] = "padded" if "padded" in layout else "packed"
    settings["recompute"] = "full" if "recompute" in layout else "none"
    plan = make_plan(tied=name == "tied", distributed_optimizer=False, **settings)
    metrics, expected = hf_gradients(reference, name, plan)
    batch = reference[name]["batches"][0]
    results = ranks.run(world(plan), "gradients", plan, checkpoints[name], batch)
    assert results[0]["gradients"].keys() == expected.keys()
    for key, want in expected.items():
        assert relative(results[0]["gradients"][key], want) < 1e-4, key
    for result in results:
        assert result["metrics"] == pytest.approx(metrics, rel=1e-4, abs=2e-5)


@pytest.mark.parametrize("beside", ["tp2_sp", "pp2", "dp2"])
def test_context_parallelism_goes_with_the_other_kinds(ranks, checkpoints, reference, beside):
    """On four ranks, where each kind has groups of its own."""
    plan = make_plan(cp=2, distributed_optimizer=False, **LAYOUTS[beside])
    metrics, expected = hf_gradients(reference, "tied", plan)
    results = ranks.run(4, "gradients", plan, checkpoints["tied"], reference["tied"]["batches"][0])
    for key, want in expected.items():
        assert relative(results[0]["gradients"][key], want) < 1e-4, key
    for result in results:
        assert result["metrics"] == pytest.approx(metrics, rel=1e-4, abs=2e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_do_not_depend_on_how_the_batch_is_cut(ranks, checkpoints, reference, loss):
    """One micro-batch, one for each sample, and empty ones in between."""
    batch = reference["untied"]["batches"][0]
    cuts = ([[7, 6, 5, 4, 3, 2, 1, 0]], [[], *([i] for i in range(8)), []], [[0, 1, 2], [3, 4], [5, 6, 7]])
    layouts = [make_plan(tied=False, batching=b, distributed_optimizer=False) for b in ("packed", "padded")]
    plans = [with_loss(plan, **LOSSES[loss]) for plan in layouts]
    results = [
        ranks.run(1, "gradients", plan, checkpoints["untied"], replace(batch, micro_batches=cut))[0]
        for plan in plans
        for cut in cuts
    ]
    if loss != "ppo_clip":
        assert results[0]["metrics"]["pg_clip_fraction"] > 0
        plain = ranks.run(1, "gradients", layouts[0], checkpoints["untied"], batch)[0]["gradients"]
        assert any(np.abs(results[0]["gradients"][key] - plain[key]).max() > 1e-3 for key in plain)
    for other in results[1:]:
        assert other["metrics"] == pytest.approx(results[0]["metrics"], abs=1e-5)
        for key, gradient in results[0]["gradients"].items():
            np.testing.assert_allclose(other["gradients"][key], gradient, atol=1e-5)


@pytest.mark.parametrize("loss", ["gspo", "cispo"])
@pytest.mark.parametrize("layout", ["tp2", "pp2", "dp2", "cp2"])
def test_other_losses_have_the_gradient_of_hugging_face_too(ranks, checkpoints, reference, layout, loss):
    """A sequence's ratio, its corrections and the entropy's gradient, over a divided vocabulary and divided samples."""
    plan = with_loss(make_plan(distributed_optimizer=False, **LAYOUTS[layout]), **LOSSES[loss])
    metrics, expected = hf_gradients(reference, "tied", plan)
    batch = reference["tied"]["batches"][0]
    results = ranks.run(world(plan), "gradients", plan, checkpoints["tied"], batch)
    for result in results:
        assert result["metrics"] == pytest.approx(metrics, rel=1e-4, abs=2e-5)
    for key, want in expected.items():
        assert relative(results[0]["gradients"][key], want) < 1e-4, key


@pytest.mark.parametrize("layout", ["tp2", "pp2"])
def test_a_reference_of_its_own_and_a_larger_teacher_score_the_samples(
    ranks, checkpoints, reference, layout, tmp_path_factory
):
    import megatron_reference as hf

    spec = replace(SPEC, hidden_size=64, num_layers=4, ffn_hidden_size=96)
    teacher = hf.make_checkpoint(tmp_path_factory.mktemp("teacher"), tied=False, spec=spec)
    other = hf.make_checkpoint(tmp_path_factory.mktemp("other"), tied=True, seed=8)
    plan = make_plan(**LAYOUTS[layout])
    held = TeacherPlan(teacher, replace(spec, tied_embeddings=False))
    plan = replace(plan, algo=replace(plan.algo, reference_path=other, teacher=held))
    batch = reference["tied"]["batches"][0]
    for result in ranks.run(world(plan), "frozen_logprobs", plan, checkpoints["tied"], batch):
        if not result["info"].reports:
            continue
        for name, directory in (("reference", other), ("teacher", teacher)):
            model = hf.load(directory)
            with torch.no_grad():
                want = [hf.token_logprobs(model, t, hf.TEMPERATURE).numpy() for t in batch.tokens]
            for values, after, expected in zip(result["before"][name], result["after"][name], want, strict=True):
                assert np.abs(values - expected).max() < NEAR
                assert np.array_equal(values, after)


def test_old_log_probs_of_the_step_itself_are_those_of_a_pass_before_it(ranks, checkpoints, reference):
    """Leaving the forward pass out changes neither loss nor gradient, in any micro-batching."""
    plan = make_plan(tied=False, distributed_optimizer=False)
    batch = replace(reference["untied"]["batches"][0], old_logprobs=reference["untied"]["logprobs"])
    before = ranks.run(1, "gradients", plan, checkpoints["untied"], batch)[0]
    itself = ranks.run(1, "gradients", plan, checkpoints["untied"], replace(batch, old_logprobs=[]))[0]
    assert itself["metrics"] == pytest.approx(before["metrics"], abs=2e-5)
    assert itself["metrics"]["ratio_max"] == 1
    for key, gradient in before["gradients"].items():
        assert relative(itself["gradients"][key], gradient) < 1e-4, key


@pytest.mark.parametrize("layout", ["tp1", "tp2", "pp2"])
@pytest.mark.parametrize("name", ["tied", "untied"])
def test_weights_come_back_bit_for_bit_in_hugging_face_order(ranks, checkpoints, reference, layout, name):
    plan = make_plan(tied=name == "tied", uses_reference=False, **LAYOUTS[layout])
    results = ranks.run(world(plan), "export", plan, checkpoints[name])
    original = dict(reference[name]["model"].named_parameters())
    names = list(results[0]["weights"])
    assert names == results[0]["expected_names"]
    assert sorted(names) == sorted(original)
    assert ("lm_head.weight" in names) == (name == "untied")
    for key, tensor in results[0]["weights"].items():
        assert np.array_equal(tensor, original[key].detach().numpy()), key
    assert all(r["weights"] == {} for r in results[1:]), "only rank 0 yields"


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_the_learning_rate_follows_its_closed_form(ranks, checkpoints, schedule, warmup):
    from megatron_reference import learning_rate

    plan = make_plan(uses_reference=False, schedule=schedule, warmup_steps=warmup, total_steps=9)
    rates = ranks.run(1, "learning_rates", plan, checkpoints["tied"], 12)[0]
    assert rates == pytest.approx([learning_rate(plan.algo.optimizer, k) for k in range(12)], rel=1e-12)
    assert min(rates) > 0


@pytest.mark.parametrize("distributed", [True, False])
def test_clipping_scales_the_step_to_the_largest_norm_and_zero_means_none(ranks, checkpoints, reference, distributed):
    """Against torch's clip_grad_norm_; the norm reported is the one before clipping."""
    import megatron_reference as hf

    batch = reference["tied"]["batches"][:1]
    for clip_grad in (0.0, 0.05):
        plan = make_plan(clip_grad=clip_grad, weight_decay=0.0, eps=1.0, distributed_optimizer=distributed)
        history, weights = hf.train(checkpoints["tied"], batch, plan.algo)
        result = ranks.run(1, "train", plan, checkpoints["tied"], batch)[0]
        assert result["metrics"][0]["grad_norm"] == pytest.approx(history[0]["grad_norm"], rel=1e-4)
        assert history[0]["grad_norm"] > 0.05
        for key, want in weights.items():
            step = want.numpy() - result["before"][key]
            assert np.abs(result["after"][key] - want.numpy()).max() < 1e-3 * np.abs(step).max() + 1e-7, key


@pytest.mark.parametrize("layout", ["tp1", "cp2"])
def test_log_probs_of_a_batch_with_nothing_in_it_and_of_one_token_samples(ranks, checkpoints, layout):
    plan = make_plan(uses_reference=False, **LAYOUTS[layout])
    results = ranks.run(world(plan), "odd_batches", plan, checkpoints["tied"])[0]
    assert results["empty"] == []
    assert [list(v) for v in results["single"]] == [[0.0], [0.0]]


def test_a_loss_that_is_not_finite_stops_the_run_before_the_weights_change(ranks, checkpoints, reference):
    plan = make_plan(uses_reference=False)
    result = ranks.run(1, "nan_step", plan, checkpoints["tied"], reference["tied"]["batches"][0])[0]
    assert result["error"] == "RunFailed"
    assert "loss is nan" in result["message"]
    assert "optimizer step 1" in result["message"]
    assert result["unchanged"]


def test_the_trainer_works_from_any_thread(ranks, checkpoints, reference):
    """Ray may call an actor's methods from several threads; the CPU shim is thread-local."""
    plan = make_plan()
    batch = reference["tied"]["batches"][0]
    here = ranks.run(1, "train", plan, checkpoints["tied"], [batch])[0]["metrics"][0]
    assert ranks.run(1, "threaded_step", plan, checkpoints["tied"], batch)[0] == here


def test_bfloat16_trains_too(ranks, checkpoints, reference):
    """The CUDA dtype, on the CPU: main weights in float32, log-probs within bfloat16's noise of float32."""
    plan = make_plan(dtype="bfloat16", tied=False)
    result = ranks.run(1, "train", plan, checkpoints["untied"], reference["untied"]["batches"][:2])[0]
    expected = reference["untied"]["logprobs"]
    difference = np.concatenate([np.abs(v - e) for v, e in zip(result["logprobs"], expected, strict=True)])
    assert difference.mean() < 0.1
    assert result["metrics"][0]["loss"] == pytest.approx(reference["untied"]["history"][0]["loss"], abs=0.05)
    assert any((result["after"][k] != result["before"][k]).any() for k in result["before"])


@pytest.mark.parametrize("layout", ["tp2", "pp2", "dp2"])
def test_publish_hands_rank_0s_sender_every_weight_once(ranks, checkpoints, reference, layout):
    plan = make_plan(uses_reference=False, **LAYOUTS[layout])
    first, second = ranks.run(2, "publish", plan, checkpoints["tied"])
    assert first["result"] == {"bytes": 5.0}
    assert second == {"sent": {}, "result": {}}
    assert first["sent"]["version"] == 7
    assert list(first["sent"]["weights"]) == first["sent"]["expected"]
    for name, parameter in reference["tied"]["model"].named_parameters():
        assert np.array_equal(first["sent"]["weights"][name], parameter.detach().numpy())
    assert first["sent"]["closed"]


def test_it_keeps_the_contract_of_a_train_backend(ranks, checkpoints, tmp_path):
    plan = make_plan()
    plan = with_loss(plan, kl_coef=0.0)  # its batch has no reference log-probs
    ranks.run(1, "contract", plan, checkpoints["tied"], str(tmp_path / "step"))
