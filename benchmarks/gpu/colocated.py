"""What rlrun promises on one GPU: learning, speed beside the bare engines, memory beside the plan, nothing left behind.

    python benchmarks/gpu/colocated.py                               # everything, ten minutes on an NVIDIA GPU
    python benchmarks/gpu/colocated.py --parts grpo,engine,trainer   # some of it
    python benchmarks/gpu/colocated.py --tiny                        # a tiny model on this CPU, through the same code

    grpo       GRPO of a Qwen3-0.6B shape with random weights, trainer and engine taking turns on the GPU: reward,
               |dlogp|, seconds and memory of each phase beside the plan
    engine     its generation beside a bare SGLang server with the same arguments and prompts
    trainer    its training beside the same trainer without Ray, and beside Megatron-core's own model, layers and loss
    leftovers  what a run that breaks, and one that is interrupted, leave: processes, GPU memory, shared memory
    ppo        five steps of PPO, whose critic shares the GPU

Each part runs in processes of its own; one that fails says why in the table, and the others go on. `engine` and
`trainer` need the figures of `grpo` for their ratios.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from _common import Kind, Part, main
from _model import describe, words

PPO_STEPS, REPEATS = 5, 3


def offload_words(part: Part) -> list[str]:
    """Both offloads, as far as this version carries them out here."""
    from rlrun.errors import RlrunError
    from rlrun.plan.build import load_plan
    from rlrun.plan.limits import limits

    chosen = []
    for key in ("trainer.offload", "rollout.offload") if part.options.offload else ():
        try:
            refused = [limit.what for limit in limits(load_plan(words(part, f"{key}=true")))]
        except RlrunError as e:
            refused = [problem.summary for problem in e.problems]
        if refused:
            part.row(f"{key}: off, not in this version ({refused[0][:50]})", None)
        else:
            chosen.append(f"{key}=true")
    return chosen


def grpo(part: Part) -> None:
    from _runs import generated_per_s, left_behind, report, shared_memory, trained_per_s, whole

    before = shared_memory()
    run = whole(part, "grpo", words(part, *offload_words(part)))
    report(part, run, "grpo")
    prompt = len(prompts(run.json("plan.json"))[0])
    found = {"generated": generated_per_s(run), "trained": trained_per_s(run, prompt), "words": run.words}
    part.row("generation", found["generated"], "tokens/s")
    part.row("training", found["trained"], "tokens/s")
    _results(part).write_text(json.dumps(found))
    left_behind(part, run, "after success", before)


def _results(part: Part) -> Path:
    """What the parts after `grpo` are compared with."""
    return Path(part.options.work) / "grpo.json"


def earlier(part: Part) -> dict[str, Any]:
    """Figures and words of the run of `grpo`; without it, only the words of one."""
    path = _results(part)
    return json.loads(path.read_text()) if path.exists() else {"words": words(part, *offload_words(part))}


def prompts(plan: dict[str, Any]) -> list[tuple[int, ...]]:
    """Token ids of the training prompts, as a run makes them."""
    from rlrun.plan.build import plan_from_json
    from rlrun.runtime.inputs import load_inputs

    typed = plan_from_json(json.dumps(plan))
    return [prompt.token_ids for prompt in load_inputs(typed, str(typed.model.path)).train]


def engine(part: Part) -> None:
    """One request with all prompts of a rollout: nothing of ours between it and the engine."""
    import dataclasses

    from _engines import BareServer, generate, server, serving

    from rlrun.plan.build import load_plan

    found = earlier(part)
    plan = load_plan(found["words"])
    texts = prompts(dataclasses.asdict(plan))[: plan.batch.prompts_per_rollout]
    each = [text for text in texts for _ in range(plan.batch.group_size)]
    bare = server(part, plan, "bare", BareServer)
    with serving(part, [bare]) as (address,):
        runs = [generate(address, each, plan.rollout.max_response_tokens, part.left_s()) for _ in range(REPEATS + 1)]
    best = max(tokens / seconds for tokens, seconds in runs[1:])
    part.row("bare SGLang: tokens of a rollout", runs[-1][0])
    part.row("bare SGLang: first rollout", runs[0][1], "s")
    part.row("bare SGLang: generation, fastest", best, "tokens/s")
    part.row("rlrun: generation, with rewards", found.get("generated"), "tokens/s", best, "bare SGLang")


def trainer(part: Part) -> None:
    from _ranks import Ranks, batches, own_steps, samples, stock_steps

    from rlrun.plan.build import load_plan

    found = earlier(part)
    plan = load_plan([word for word in found["words"] if not word.endswith("offload=true")])
    prompt, response = 4, plan.rollout.max_response_tokens
    chosen = samples([prompt + response] * plan.batch.samples_per_step)
    tokens = sum(len(sample.tokens) for sample in chosen)
    step, model_dir = batches(plan, chosen), str(plan.model.path)
    part.row("tokens of an optimizer step", tokens)
    part.row("its micro-batches", len(step[0].micro_batches))
    with Ranks(1) as ranks:
        own = ranks.run(1, own_steps, plan, model_dir, step, REPEATS, deadline_s=part.left_s())[0]
        bare = ranks.run(1, stock_steps, plan, step, REPEATS, deadline_s=part.left_s())[0]
    part.row("Megatron's own model: optimizer step", bare["seconds"], "s")
    part.row("rlrun's trainer alone: optimizer step", own["seconds"], "s", bare["seconds"], "Megatron's own model")
    rates = tokens / own["seconds"], tokens / bare["seconds"]
    part.row("rlrun's trainer alone: training", rates[0], "tokens/s", rates[1], "Megatron's own model")
    part.row("rlrun: training, with Ray", found.get("trained"), "tokens/s", rates[0], "rlrun's trainer alone")
    part.row("rlrun: training, with Ray and loss", found.get("trained"), "tokens/s", rates[1], "Megatron's own model")
    if own["peak_gib"] is not None:
        part.row(
            "rlrun's trainer alone: allocator's peak", own["peak_gib"], "GiB", own["planned_gib"], "plan, trainer only"
        )
        part.row("Megatron's own model: allocator's peak", bare["peak_gib"], "GiB")


def ppo(part: Part) -> None:
    from _runs import report, whole

    steps = min(PPO_STEPS, part.options.steps)
    report(part, whole(part, "ppo", words(part, "algo=ppo", *offload_words(part), steps=steps)), "ppo")


def leftovers(part: Part) -> None:
    """A reward that raises, then Ctrl-C while the second step is made. The terminal sends that to the whole group."""
    from _runs import finish, left_behind, shared_memory, start

    before = shared_memory()
    common = words(part, *offload_words(part), graph=False)
    broken = [word for word in common if not word.startswith("reward.function=")]
    run = start(part, "broken", [*broken, "reward.function=_rewards:broken"])
    finish(part, run, "broken", exit_code=1)
    part.row("after a failure: status", run.json("summary.json")["status"])
    left_behind(part, run, "after a failure", before)

    before = shared_memory()
    run = start(part, "interrupted", common)
    run.watch(part.left_s(), until=lambda r: len(r.rows()) >= 1)
    os.killpg(run.process.pid, signal.SIGINT)
    finish(part, run, "interrupted", exit_code=130)
    part.row("after Ctrl-C: status", run.json("summary.json")["status"])
    left_behind(part, run, "after Ctrl-C", before)


PARTS = {
    "grpo": Kind(grpo, 150),
    "engine": Kind(engine, 60),
    "trainer": Kind(trainer, 45),
    "leftovers": Kind(leftovers, 100),
    "ppo": Kind(ppo, 90),
}

if __name__ == "__main__":
    raise SystemExit(main("colocated", __doc__, PARTS, describe))
