"""Resuming is bit for bit in the same layout, and equal to rounding in another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from megatron_plans import SPEC, make_plan, world

pytestmark = pytest.mark.engines

LAYOUTS = {"tp1": {}, "tp2": {"tp": 2}, "pp2": {"pp": 2}, "dp2": {"dp": 2}, "cp2": {"cp": 2}}


def folder(path):
    path.mkdir()
    return str(path)


@pytest.fixture(scope="module")
def batches(checkpoints):
    import megatron_reference as hf

    return [hf.make_batch(checkpoints["tied"], seed) for seed in range(4)]


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ("tp1", {}),
        ("tp1", {"distributed_optimizer": False}),
        ("tp1", {"dtype": "bfloat16"}),
        ("tp1", {"dtype": "bfloat16", "distributed_optimizer": False}),
        ("tp2", {}),
        ("pp2", {}),
        ("dp2", {}),
        ("dp2", {"distributed_optimizer": False}),
        ("dp2", {"gather": "host"}),
        ("cp2", {}),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(ranks, checkpoints, batches, tmp_path, layout, settings):
    plan = make_plan(**LAYOUTS[layout], **settings)
    directory = folder(tmp_path / "step")
    saved = ranks.run(world(plan), "save_and_go_on", plan, checkpoints["tied"], directory, batches, 2)
    fresh = (layout, settings) == ("dp2", {})  # new processes once; elsewhere the load overwrites a used state
    resumed = ranks.run(
        world(plan), "load_and_go_on", plan, checkpoints["tied"], directory, batches[2:], not fresh, fresh=fresh
    )
    for before, after in zip(saved, resumed, strict=True):
        assert after["at_load"] == before["at_save"]
        assert after["own_steps"], "parameters share one step counter"
        assert after["metrics"] == before["metrics"]
        assert after["at_end"] == before["at_end"]
        assert before["at_end"]["weights"] != before["at_save"]["weights"]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("tp2", "tp1"),
        ("pp2", "tp1"),
        ("dp2", "tp1"),
        ("tp1", "tp2"),
        ("tp2", "pp2"),
        ("pp2", "dp2"),
        ("dp2", "tp2"),
        ("cp2", "tp1"),
        ("tp2", "cp2"),
    ],
)
def test_a_checkpoint_loads_into_another_layout_and_trains_on_equally(
    ranks, checkpoints, batches, tmp_path, source, target
):
    saving, loading = make_plan(**LAYOUTS[source]), make_plan(**LAYOUTS[target])
    directory = folder(tmp_path / "step")
    saved = ranks.run(world(saving), "save_and_go_on", saving, checkpoints["tied"], directory, batches, 2)[0]
    resumed = ranks.run(world(loading), "load_and_go_on", loading, checkpoints["tied"], directory, batches[2:])[0]
    for before, after in zip(saved["metrics"], resumed["metrics"], strict=True):
        assert after == pytest.approx(before, rel=1e-4, abs=2e-5)
    for key, tensor in saved["weights"].items():
        np.testing.assert_allclose(resumed["weights"][key], tensor, atol=5e-5)


def test_gathered_on_the_host_a_checkpoint_is_the_same_one(ranks, checkpoints, batches, tmp_path):
    """Saved on the host and loaded by ranks that would gather on the GPU, in another layout."""
    saving, loading = make_plan(dp=2, gather="host"), make_plan(tp=2)
    directory = folder(tmp_path / "step")
    saved = ranks.run(2, "save_and_go_on", saving, checkpoints["tied"], directory, batches, 2)[0]
    resumed = ranks.run(2, "load_and_go_on", loading, checkpoints["tied"], directory, batches[2:])[0]
    for key, tensor in saved["weights"].items():
        np.testing.assert_allclose(resumed["weights"][key], tensor, atol=5e-5)


def test_uneven_stages_resume_bit_for_bit_and_in_one_piece(ranks, batches, tmp_path):
    from megatron_reference import make_checkpoint

    model = make_checkpoint(tmp_path / "model", tied=True, spec=replace(SPEC, num_layers=3))
    uneven = make_plan(pp=2, num_layers=3, stage_layers=(1, 2))
    whole = make_plan(num_layers=3)
    directory = folder(tmp_path / "step")
    saved = ranks.run(2, "save_and_go_on", uneven, model, directory, batches, 2)
    for plan in (uneven, whole):
        resumed = ranks.run(world(plan), "load_and_go_on", plan, model, directory, batches[2:])
        assert len(resumed[0]["weights"]) == 3 * 11 + 2  # of the Hugging Face checkpoint
        for key, tensor in saved[0]["weights"].items():
            np.testing.assert_allclose(resumed[0]["weights"][key], tensor, atol=5e-5)
        if plan is uneven:
            assert [r["at_load"] for r in resumed] == [s["at_save"] for s in saved]


def test_a_checkpoint_before_the_first_step_loads(ranks, checkpoints, batches, tmp_path):
    plan = make_plan()
    directory = folder(tmp_path / "step")
    saved = ranks.run(1, "save_and_go_on", plan, checkpoints["tied"], directory, batches[:1], 0)[0]
    resumed = ranks.run(1, "load_and_go_on", plan, checkpoints["tied"], directory, batches[:1])[0]
    assert resumed["at_end"] == saved["at_end"]


def test_the_plan_decides_the_optimizer_settings_of_a_resumed_run(ranks, checkpoints, batches, tmp_path):
    """A new learning rate and new betas take effect; the position in the schedule comes from the checkpoint."""
    from megatron_reference import learning_rate

    plan, changed = make_plan(), make_plan(lr=3e-3, beta1=0.5)
    directory = folder(tmp_path / "step")
    ranks.run(1, "save_and_go_on", plan, checkpoints["tied"], directory, batches[:3], 2)
    result = ranks.run(1, "load_and_go_on", changed, checkpoints["tied"], directory, batches[2:3])[0]
    same = ranks.run(1, "load_and_go_on", make_plan(lr=3e-3), checkpoints["tied"], directory, batches[2:3])[0]
    assert result["metrics"][0]["lr"] == pytest.approx(learning_rate(changed.algo.optimizer, 2))
    assert result["at_end"]["weights"] != same["at_end"]["weights"], "beta1 was ignored"


def test_saving_starts_no_other_process(ranks, checkpoints, batches, tmp_path):
    plan = make_plan()
    args = (plan, checkpoints["tied"], folder(tmp_path / "step"))
    assert ranks.run(1, "children_after_save", *args)[0] == []


@pytest.mark.parametrize("damage", ["empty", "truncated"])
def test_a_checkpoint_that_cannot_be_read_says_so(ranks, checkpoints, batches, tmp_path, damage):
    plan = make_plan()
    directory = tmp_path / "step"
    folder(directory)
    if damage == "truncated":
        ranks.run(1, "save_and_go_on", plan, checkpoints["tied"], str(directory), [], 0)
        for path in directory.glob("*.distcp"):
            path.write_bytes(path.read_bytes()[:100])
    kind, message = ranks.run(1, "load_error", plan, checkpoints["tied"], str(directory))[0]
    assert kind == "RunFailed"
    assert f"reading the checkpoint in {directory} failed" in message
    assert "Traceback" not in message
