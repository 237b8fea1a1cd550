"""The Megatron critic against Hugging Face's trunk with a torch head, in every layout two processes allow."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron_plans import make_plan, world
from test_trainer import LAYOUTS, relative, reported

pytestmark = pytest.mark.engines

NEAR = 1e-5


def planned(**settings):
    return make_plan(critic=True, uses_reference=False, **settings)


@pytest.fixture(scope="module")
def reference(checkpoints):
    """Three optimizer steps on the untied checkpoint, and what torch makes of them."""
    import critic_reference as hf

    directory = checkpoints["untied"]
    batches = [hf.make_batch(directory, seed) for seed in range(3)]
    model = hf.Reference(directory, hf.head_weight())
    with torch.no_grad():
        values = [model.values(t).numpy() for t in batches[0].tokens]
    history = hf.train(model, batches, planned().critic)
    return {"batches": batches, "values": values, "history": history, "model": model}


def named(model):
    return {f"model.{name}": p.detach().numpy() for name, p in model.trunk.named_parameters()}


@pytest.mark.parametrize("layout", [*LAYOUTS, "tp2_sp_padded", "pp2_padded", "cp2_padded"])
def test_training_equals_hugging_face_and_torch_adamw(ranks, checkpoints, reference, layout):
    """Values, metrics of three steps, the weights after them, and a policy that is not touched."""
    settings = {"batching": "padded" if "padded" in layout else "packed", **LAYOUTS[layout.removesuffix("_padded")]}
    plan = planned(tied=False, **settings)
    results = ranks.run(world(plan), "critic_train", plan, checkpoints["untied"], reference["batches"])
    for dp, values in reported(results, "values").items():
        mine = reference["values"][dp :: plan.train.dp]
        assert [len(v) for v in values] == [len(e) for e in mine]
        assert max(np.abs(v - e).max() for v, e in zip(values, mine, strict=True)) < NEAR
    assert all(r["values"] == [] for r in results if not r["info"].reports)
    assert all(r["metrics"] == results[0]["metrics"] for r in results), "ranks disagree"
    for step, want in zip(results[0]["metrics"], reference["history"], strict=True):
        assert step.keys() == want.keys()
        for key in want:
            assert step[key] == pytest.approx(want[key], rel=1e-4, abs=2e-5), key
    assert reference["history"][0]["value_clip_fraction"] > 0.05
    assert reference["history"][0]["grad_norm"] > 1.5, "nothing was clipped"
    for key, want in named(reference["model"]).items():
        assert np.abs(results[0]["after"][key] - want).max() < 1e-4, key
    head = reference["model"].head
    for weight, bias in (r["head"] for r in results if r["head"] is not None):
        assert np.abs(weight - head.weight.detach().numpy()).max() < 1e-4
        assert bias == pytest.approx(float(head.bias), abs=1e-4)
    assert all(r["policy_unchanged"] for r in results)


@pytest.mark.parametrize("layout", [*LAYOUTS, "tp2_sp_recompute", "pp2_recompute", "cp2_recompute"])
def test_the_gradient_of_every_parameter_equals_autograd(ranks, checkpoints, reference, layout):
    """Head and trunk, also where the policy ties its embedding, which the critic never does."""
    import critic_reference as hf

    settings = {"recompute": "full" if "recompute" in layout else "none", **LAYOUTS[layout.removesuffix("_recompute")]}
    for name in ("untied", "tied"):
        plan = planned(tied=name == "tied", distributed_optimizer=False, **settings)
        model, batch = hf.Reference(checkpoints[name], hf.head_weight()), reference["batches"][0]
        loss, metrics = model.loss(batch, plan.critic.value_clip)
        loss.backward()
        results = ranks.run(world(plan), "critic_gradients", plan, checkpoints[name], batch)
        for key, parameter in model.trunk.named_parameters():
            assert relative(results[0]["gradients"][f"model.{key}"], parameter.grad.numpy()) < 1e-4, (name, key)
        for weight, bias in (r["head"] for r in results if r["head"] is not None):
            assert relative(weight, model.head.weight.grad.numpy()) < 1e-4
            assert bias == pytest.approx(float(model.head.bias.grad), rel=1e-4)
        for result in results:
            assert result["metrics"] == pytest.approx(metrics, rel=1e-4, abs=2e-5)


@pytest.mark.parametrize("layout", ["tp1", "tp2", "pp2", "dp2", "cp2"])
def test_a_resumed_critic_equals_an_uninterrupted_one_bit_for_bit(ranks, checkpoints, reference, tmp_path, layout):
    plan = planned(**LAYOUTS[layout])
    batches, args = reference["batches"], (plan, checkpoints["tied"], str(tmp_path))
    saved = ranks.run(world(plan), "critic_save_and_go_on", *args, batches)
    resumed = ranks.run(world(plan), "critic_load_and_go_on", *args, batches[1:])
    for before, after in zip(saved, resumed, strict=True):
        assert after["at_load"] == before["at_save"]
        assert after["metrics"] == before["metrics"]
        assert after["at_end"] == before["at_end"]
        for part in ("critic_weights", "critic_optimizer", "critic_lr"):
            assert before["at_end"][part] != before["at_save"][part]


@pytest.mark.parametrize(("source", "target"), [("tp2", "pp2"), ("pp2", "dp2"), ("dp2", "cp2"), ("cp2", "tp1")])
def test_a_critic_loads_into_another_layout_and_trains_on_equally(
    ranks, checkpoints, reference, tmp_path, source, target
):
    saving, loading = planned(tied=False, **LAYOUTS[source]), planned(tied=False, **LAYOUTS[target])
    batches, directory = reference["batches"], str(tmp_path)
    saved = ranks.run(world(saving), "critic_save_and_go_on", saving, checkpoints["untied"], directory, batches)
    resumed = ranks.run(world(loading), "critic_load_and_go_on", loading, checkpoints["untied"], directory, batches[1:])
    for before, after in zip(saved[0]["metrics"], resumed[0]["metrics"], strict=True):
        assert after == pytest.approx(before, rel=1e-4, abs=2e-5)
    for key, tensor in saved[0]["weights"].items():
        np.testing.assert_allclose(resumed[0]["weights"][key], tensor, atol=5e-5)


def test_a_checkpoint_without_a_critic_says_so(ranks, checkpoints, tmp_path):
    without, plan = make_plan(uses_reference=False), planned()
    ranks.run(1, "save_and_go_on", without, checkpoints["tied"], str(tmp_path), [], 0)
    kind, message = ranks.run(1, "load_error", plan, checkpoints["tied"], str(tmp_path))[0]
    assert kind == "RunFailed"
    assert "was saved without a critic, and the plan has one" in message


def test_a_reward_models_score_becomes_the_head_and_its_trunk_the_trunk(ranks, checkpoints, reference, tmp_path):
    """`score.weight` of a classifier; the policy keeps its own weights."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "reward"
    shutil.copytree(checkpoints["untied"], folder)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    weights = {name: tensor + 0.01 for name, tensor in weights.items()}
    score = torch.arange(32, dtype=torch.float32)[None] / 32
    save_file({**weights, "score.weight": score}, folder / "model.safetensors", metadata={"format": "pt"})
    plan = planned(tied=False, critic_path=str(folder))
    result = ranks.run(1, "critic_train", plan, checkpoints["untied"], reference["batches"][:1])[0]
    weight, bias = result["head_before"]
    assert np.array_equal(weight, score.numpy())
    assert bias == 0
    for name, tensor in weights.items():
        assert np.array_equal(result["before"][name], tensor.numpy()), name
    [note] = result["info"].notes
    assert note == f"critic starts from {folder}; its value head from score.weight there"


def test_a_new_head_is_said_to_be_new_and_is_the_same_in_every_layout(ranks, checkpoints, reference):
    import critic_reference as hf

    for layout in ("tp1", "tp2", "pp2"):
        plan = planned(tied=False, **LAYOUTS[layout])
        results = ranks.run(world(plan), "critic_train", plan, checkpoints["untied"], [reference["batches"][0]])
        heads = [r["head_before"] for r in results if r["head_before"] is not None]
        assert len(heads) == (2 if layout == "tp2" else 1)
        for weight, bias in heads:
            assert np.array_equal(weight, hf.head_weight())
            assert bias == 0
        assert results[0]["info"].notes == (
            "critic starts from the policy's weights; its value head is new, N(0, 0.02)",
        )


def test_a_critics_checkpoint_of_another_shape_is_refused_with_every_problem(ranks, checkpoints, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "critic"
    shutil.copytree(checkpoints["untied"], folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:50].clone()
    save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
    found = ranks.run(1, "start_error", planned(tied=False, critic_path=str(folder)), checkpoints["untied"])[0]
    assert [code for code, _ in found] == ["weights-missing", "weights-shape"]
    assert "lacks model.norm.weight" in found[0][1]


def test_a_value_loss_that_is_not_finite_stops_the_run_before_the_weights_change(ranks, checkpoints, reference):
    plan = planned(tied=False)
    message, unchanged = ranks.run(1, "critic_nan_step", plan, checkpoints["untied"], reference["batches"][0])[0]
    assert message.startswith("RunFailed: ")
    assert "the critic's value loss is" in message
    assert unchanged


def test_bfloat16_values_stay_close_to_float32(ranks, checkpoints, reference):
    plan = planned(tied=False, dtype="bfloat16")
    result = ranks.run(1, "critic_train", plan, checkpoints["untied"], reference["batches"][:2])[0]
    gap = np.concatenate([np.abs(v - e) for v, e in zip(result["values"], reference["values"], strict=True)])
    assert gap.mean() < 0.01
    assert result["metrics"][0]["value_loss"] == pytest.approx(reference["history"][0]["value_loss"], abs=0.05)


def test_it_keeps_the_contract_of_a_critic(ranks, checkpoints, tmp_path):
    plan = planned()
    slow = replace(plan.critic.optimizer, lr=1e-3, min_lr=0.0, warmup_steps=0)
    plan = replace(plan, critic=replace(plan.critic, optimizer=slow))
    ranks.run(1, "critic_contract", plan, checkpoints["tied"], str(tmp_path / "step"))
