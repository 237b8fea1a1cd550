"""What rlrun promises on two GPUs: learning over NCCL, equal weights, parity of layouts, GB/s of every weight sync.

    python benchmarks/gpu/two_gpus.py                                # everything, ten minutes on two NVIDIA GPUs
    python benchmarks/gpu/two_gpus.py --parts parity,sync            # some of it
    python benchmarks/gpu/two_gpus.py --tiny                         # a tiny model, gloo, on this CPU

    parity         loss and gradients in float32 of tp 2, dp 2, pp 2 and cp 2, beside those of one GPU
    disaggregated  GRPO of a Qwen3-0.6B shape, one GPU that trains and one that generates: reward, |dlogp|, step times
    sync           GB/s of weights to an engine, beside a plain broadcast or copy of the same bytes; bytes of deltas
                   beside the entropy of what changed
    colocated_tp   a trainer of tp 2 with two engines, and with one of tp 2: are the engines' weights the trainer's, to
                   the bit; GPU memory of each phase beside the plan
    async          the asynchronous modes, when this version runs them

Each part runs in processes of its own; one that fails says why in the table, and the others go on.
"""

from __future__ import annotations

from typing import Any

from _common import Kind, Part, main
from _model import describe, words

LAYOUTS = {
    "tp 2": ("placement.trainer.tp=2",),
    "tp 2, sequence parallel": ("placement.trainer.tp=2", "trainer.sequence_parallel=true"),
    "dp 2": (),
    "pp 2": ("placement.trainer.pp=2",),
    "cp 2": ("placement.trainer.cp=2",),
}
GOAL = 1e-4


def placed(part: Part, *more: str) -> list[str]:
    """Two trainer ranks, as words."""
    return words(part, "placement.gpus_per_node=2", "placement.trainer.gpus=2", *more)


def parity(part: Part) -> None:
    """The gradients, which need an optimizer that is not distributed; then two steps as a run makes them."""
    from _ranks import Ranks, batches, gradient, samples, steps

    from rlrun.plan.build import load_plan

    lengths = [24, 60, 9, 33, 48, 17, 51, 40] if part.options.tiny else [260, 700, 90, 333, 512, 170, 640, 450] * 2
    own = ["model.dtype=float32", f"trainer.max_tokens_per_gpu={128 if part.options.tiny else 2048}"]
    whole = "trainer.distributed_optimizer=false"
    chosen = samples(lengths)
    with Ranks(2) as ranks:

        def run(job: Any, world: int, *more: str) -> Any:
            plan = load_plan([*(placed(part, *more) if world > 1 else words(part, *more)), *own])
            step = batches(plan, chosen)
            return ranks.run(world, job, plan, str(plan.model.path), step, deadline_s=part.left_s())[0]

        run(gradient, 1, whole)
        want = run(steps, 1)
        part.row("one GPU: loss", want[0]["loss"])
        part.row("one GPU: gradient norm", want[0]["grad_norm"])
        for name, layout in LAYOUTS.items():
            apart = run(gradient, 2, *layout, whole)
            part.row(f"{name}: all gradients, relative difference", apart["all"], "", GOAL, "goal")
            part.row(f"{name}: gradient of one weight, worst", apart["worst"], "", GOAL, "goal")
            found = run(steps, 2, *layout)
            for key, what in (("loss", "loss"), ("grad_norm", "gradient norm")):
                off = max(abs(a[key] - b[key]) / abs(b[key]) for a, b in zip(found, want, strict=True))
                part.row(f"{name}: {what} of two steps, relative difference", off, "", GOAL, "goal")


def disaggregated(part: Part) -> None:
    from _runs import generated_per_s, left_behind, report, shared_memory, trained_per_s, whole

    before = shared_memory()
    run = whole(part, part.name, disaggregated_words(part))
    report(part, run, part.name)
    part.row("generation", generated_per_s(run), "tokens/s")
    part.row("training", trained_per_s(run, 4), "tokens/s")
    left_behind(part, run, "after success", before)


APART = ("placement.mode=disaggregated", "placement.gpus_per_node=2", "weight_sync.transport=distributed")


def disaggregated_words(part: Part) -> list[str]:
    return words(part, *APART)


def asynchronous_words(part: Part, mode: str) -> list[str]:
    """One optimizer step a rollout: further ones would make its samples older than one_step allows."""
    return words(part, *APART, f"async_mode={mode}", steps=part.options.steps // 2 + 1, optimizer_steps=1)


def sync(part: Part) -> None:
    from _sync import sync as run

    run(part)


def colocated_tp(part: Part) -> None:
    from _colocated_tp import colocated_tp as run

    run(part)


def asynchronous(part: Part) -> None:
    """A disaggregated run in each mode, beside the synchronous one in step time."""
    from _runs import median, report, warm, whole

    from rlrun.errors import RlrunError
    from rlrun.plan.build import load_plan
    from rlrun.plan.limits import limits

    runnable = []
    for mode in ("sync", "one_step", "fully_async"):
        try:
            refused = [limit.what for limit in limits(load_plan(asynchronous_words(part, mode)))]
        except RlrunError as e:
            refused = [problem.summary for problem in e.problems]
        if refused:
            part.row(f"{mode}: not in this version ({refused[0][:60]})", None)
        else:
            runnable.append(mode)
    if runnable == ["sync"]:
        return
    synchronous = None
    for mode in runnable:
        run = whole(part, mode, asynchronous_words(part, mode))
        report(part, run, mode)
        step = median([row["perf/step_s"] for row in warm(run.rows())])
        synchronous = synchronous or step
        part.row(f"{mode}: step beside the synchronous one", step, "s", synchronous, "sync")
        stale = max(row.get("rollout/staleness_max", 0.0) for row in run.rows())
        part.row(f"{mode}: largest staleness", stale, "", float(run.json("plan.json")["max_staleness"]), "allowed")


PARTS = {
    "disaggregated": Kind(disaggregated, 140),
    "colocated_tp": Kind(colocated_tp, 150),
    "sync": Kind(sync, 100),
    "parity": Kind(parity, 80),
    "async": Kind(asynchronous, 10),
}

if __name__ == "__main__":
    raise SystemExit(main("two_gpus", __doc__, PARTS, describe))
