"""Saving beside training writes what saving at once writes; a run that dies while it saves has its last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from megatron_plans import make_plan

from rlrun.runtime.checkpoint import CheckpointStore

pytestmark = pytest.mark.engines

TP2, DP2 = {"tp": 2}, {"dp": 2}


@pytest.fixture(scope="module")
def batches(checkpoints):
    import megatron_reference as hf

    return [hf.make_batch(checkpoints["tied"], seed) for seed in range(4)]


def folder(path):
    path.mkdir()
    return str(path)


def contents(directory: Path) -> dict[str, bytes]:
    """Of the files that hold the state; .metadata also has the folder's name in it."""
    files = [*directory.rglob("*.distcp"), *directory.rglob("common.pt")]
    return {str(f.relative_to(directory)): f.read_bytes() for f in files}


@pytest.mark.parametrize(
    "layout",
    [
        TP2,
        DP2,
        {**DP2, "gather": "host"},
        {**TP2, "distributed_optimizer": False},
        {**TP2, "distributed_optimizer": False, "dtype": "bfloat16"},
        {**TP2, "critic": True},
    ],
    ids=str,
)
def test_what_is_written_beside_training_is_the_state_at_the_save(ranks, checkpoints, batches, tmp_path, layout):
    plan = make_plan(**layout)
    at_once, beside = tmp_path / "at_once", tmp_path / "beside"
    args = (plan, checkpoints["tied"], folder(at_once), folder(beside), batches)
    results = ranks.run(2, "save_at_once_and_beside", *args)
    for result in results:
        assert result["moved"]["weights"] != result["saved"]["weights"]
        assert (result["written_early"], result["done_early"]) == ([], False)
        assert result["seconds"] > 0
    files = contents(beside)
    assert len(files) >= 2
    assert files == contents(at_once)
    if "critic" not in layout:  # load_and_go_on trains the policy alone
        loaded = ranks.run(2, "load_and_go_on", plan, checkpoints["tied"], str(beside), batches[1:], True)
        assert [r["at_load"] for r in loaded] == [r["saved"] for r in results]
        assert [r["at_end"] for r in loaded] == [r["at_end"] for r in results], "the save disturbed the training"


@pytest.mark.parametrize("layout", [DP2, {"pp": 2}], ids=str)
def test_joined_on_the_host_in_pieces_the_state_is_what_it_is_on_the_gpu(ranks, checkpoints, batches, tmp_path, layout):
    """The pieces do not divide the shards; a tied embedding under pp has a padded bucket of its own."""
    for gather in ("gpu", "host"):
        plan = make_plan(**layout, gather=gather)
        ranks.run(2, "save_in_pieces", plan, checkpoints["tied"], folder(tmp_path / gather), batches[0], 1001)
    gpu, host = ({k: v for k, v in contents(tmp_path / g).items() if k.endswith("distcp")} for g in ("gpu", "host"))
    assert len(gpu) >= 2
    assert gpu == host


@pytest.mark.parametrize("beside", [False, True])
def test_a_rank_that_cannot_write_is_named_on_every_rank(ranks, checkpoints, tmp_path, beside):
    directory = folder(tmp_path / "step")
    said = ranks.run(2, "failing_save", make_plan(tp=2), checkpoints["tied"], directory, beside)
    assert said[0] == said[1]
    assert f"saving the checkpoint to {directory} failed: rank 1: OSError: [Errno 28] No space left" in said[0]


@pytest.mark.parametrize("beside", [False, True])
def test_a_run_killed_while_it_saves_goes_on_from_the_checkpoint_before(ranks, checkpoints, batches, tmp_path, beside):
    plan, run_dir = make_plan(tp=2), folder(tmp_path / "run")
    args = (plan, checkpoints["tied"], run_dir)
    with pytest.raises(AssertionError, match="the process died"):
        ranks.run(2, "run_that_dies", *args, batches, beside)
    store = CheckpointStore(run_dir, keep=1)
    (debris,) = (tmp_path / "run" / "checkpoints").glob(".step_000002.*")
    assert list(debris.rglob("*.distcp")), "it died before it wrote anything"
    assert (store.steps(), store.damage(1)) == ([1], [])

    resumed = ranks.run(2, "run_that_goes_on", *args, batches)[0]
    expected = ranks.run(2, "uninterrupted", plan, checkpoints["tied"], batches[:2])[0]
    assert (resumed["step"], resumed["loaded"]) == (1, [expected[0]])
    assert resumed["steps"] == [2]
    assert json.loads(Path(store.path(2), "digest.json").read_text()) == [expected[1]]
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000002"], "debris is left"
