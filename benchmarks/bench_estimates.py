"""Estimated step times against published ones, whose set-up is known well enough to be described.

    python benchmarks/bench_estimates.py

The ratio is estimate / published. What the sources leave open is assumed: mean prompts of 150 tokens, CUDA graphs,
1,024 requests at once, 0.8 of a GPU for an engine, half of the GPUs for each side when disaggregated, no reference
model. Other engines and trainers than ours were measured, so a factor of two is what to hope for.

As found: whole steps 0.59 to 1.46 of what was published, in the median 0.76, so rather too short: nothing is counted
for rewards, data on its way, waking up or warming up. Single phases that were published alone 1.10 and 1.18; an
optimizer step of our own trainer, on one H200, 1.02. Weight syncs 0.45 to 4.2: published ones send from many ranks at
once, which the estimate, of one sending rank, does not. Which of two modes is faster is guessed right where they
differ clearly: 30B sync / one step 1.01 (published 0.92 and 1.26), 32B 1.60 on twice the GPUs (1.83), 235B 1.10 on
twice the GPUs (2.10; its weight sync is estimated too slow).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlrun.plan.build import load_plan
from rlrun.plan.estimate.step import estimate_time
from rlrun.plan.estimate.train import forward_flops
from rlrun.plan.estimate.work import Work
from rlrun.plan.layout import Layout
from rlrun.plan.types import ModelSpec

NEMO = "NeMo RL performance summary"


@dataclass(frozen=True)
class Anchor:
    source: str
    name: str
    work: Work
    seconds: float
    phases: tuple[str, ...] = ()
    """What `seconds` covers; the whole step when empty."""


def spec(model: str) -> ModelSpec:
    return load_plan(["+experiment=qwen3_grpo", "placement=cpu_1", f"model={model}"]).model.spec


def work(
    model: str,
    *,
    trainer: dict[str, int],
    engine_tp: int,
    rollout_gpus: int,
    samples: int,
    longest: int,
    response: float,
    optimizer_steps: int,
    mode: str = "sync",
    gpu: str = "h100_80gb",
    recompute: bool = False,
    colocated: bool = True,
) -> Work:
    sizes = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 1} | trainer
    layout = Layout(
        spec=spec(model),
        gpu=gpu,
        weight_bytes=2,
        colocated=colocated,
        max_tokens=longest,
        micro_batch_size=None,
        recompute=recompute,
        sequence_parallel=sizes["tp"] > 1,
        distributed_optimizer=True,
        reference=False,
        engine_tp=engine_tp,
        mem_fraction=0.8,
        max_total_tokens=None,
        sample_tokens=longest,
        bucket_bytes=2**30,
        **sizes,
    )
    return Work(
        layout=layout,
        gpus_per_node=8,
        rollout_gpus=rollout_gpus,
        num_samples=samples,
        optimizer_steps=optimizer_steps,
        in_flight_samples=samples,
        max_running_requests=1024,
        cuda_graph=True,
        prompt_tokens=150.0,
        response_tokens=response,
        longest_response=longest - 150,
        transport="tensor" if colocated else "distributed",
        mode=mode,
        max_staleness=0 if mode == "sync" else 1,
    )


def anchors() -> list[Anchor]:
    small = {"samples": 2048, "longest": 4096, "optimizer_steps": 4}
    big = {"samples": 512, "longest": 8192, "optimizer_steps": 1, "recompute": True}
    ahead = {"mode": "one_step", "colocated": False}
    moe30 = work(
        "qwen3_30b_a3b", trainer={"tp": 2, "ep": 8, "dp": 16}, engine_tp=4, rollout_gpus=32, response=3004, **small
    )
    moe30_ahead = work(
        "qwen3_30b_a3b", trainer={"pp": 2, "ep": 8, "dp": 8}, engine_tp=2, rollout_gpus=16, response=3008, **small,
        **ahead,
    )  # fmt: skip
    moe235 = work(
        "qwen3_235b_a22b", trainer={"tp": 2, "cp": 2, "ep": 16, "pp": 8, "dp": 4}, engine_tp=16, rollout_gpus=128,
        response=5521, **big,
    )  # fmt: skip
    moe235_ahead = work(
        "qwen3_235b_a22b", trainer={"tp": 4, "ep": 16, "pp": 8, "dp": 4}, engine_tp=8, rollout_gpus=128,
        response=5541, **big, **ahead,
    )  # fmt: skip
    dense32 = work(
        "qwen3_32b", trainer={"tp": 4, "pp": 4, "dp": 2}, engine_tp=4, rollout_gpus=32, response=3056, **small
    )
    dense32_ahead = work(
        "qwen3_32b", trainer={"tp": 4, "pp": 4, "dp": 2}, engine_tp=4, rollout_gpus=32, response=3057, **small, **ahead
    )
    dense4 = work(
        "qwen3_4b", trainer={"tp": 2, "dp": 2}, engine_tp=1, rollout_gpus=4, samples=256, longest=2198, response=1900,
        optimizer_steps=1, gpu="h800_80gb", recompute=True, colocated=False,
    )  # fmt: skip
    vime = "vime issue 244"
    return [
        Anchor(f"{NEMO} 0.4", "Qwen3-30B-A3B, 32 H100, sync", moe30, 225),
        Anchor(f"{NEMO} 0.6", "the same, newer software", moe30, 192),
        Anchor(f"{NEMO} 0.4", "Qwen3-30B-A3B, 32 H100, one step", moe30_ahead, 244),
        Anchor(f"{NEMO} 0.6", "the same, newer software", moe30_ahead, 152),
        Anchor(f"{NEMO} 0.4", "Qwen3-235B-A22B, 128 H100, sync", moe235, 506),
        Anchor(f"{NEMO} 0.4", "Qwen3-235B-A22B, 256 H100, one step", moe235_ahead, 241),
        Anchor(f"{NEMO} 0.4", "Qwen3-32B, 32 H100, sync", dense32, 393),
        Anchor(f"{NEMO} 0.4", "Qwen3-32B, 64 H100, one step", dense32_ahead, 215),
        Anchor(vime, "Qwen3-4B, 4 + 4 H800, rollout", dense4, 23.8, ("generate",)),
        Anchor(vime, "the same, log-probs and train", dense4, 16.8, ("logprob", "train")),
        Anchor(vime, "the same, whole step", dense4, 68.0),
    ]


def measured() -> list[Anchor]:
    """What this project's trainer took on one H200 for two micro-batches of 16,384 tokens: 0.28 to 0.30 of the peak,
    recomputation not counted."""
    w = work(
        "qwen3_4b", trainer={}, engine_tp=1, rollout_gpus=1, samples=16, longest=2048, response=1898,
        optimizer_steps=1, gpu="h200_141gb", recompute=True,
    )  # fmt: skip
    seconds = 3 * sum(forward_flops(w)) / (0.29 * w.gpu.flops)
    return [Anchor("one rank of our own on an H200", "Qwen3-4B, optimizer step", w, seconds, ("train",))]


def syncs() -> list[Anchor]:
    """Weight syncs over NCCL without special transports; layouts are not published, so trainer tp 1 without experts'
    parallelism stands for all: one copy sent over the network."""
    found = []
    for model, source, seconds in (
        ("qwen3_30b_a3b", "miles p2p page, NCCL", 2.67),
        ("qwen3_30b_a3b", "verl checkpoint engine, NCCL, receive only", 7.0),
        ("glm4_5_air", "miles p2p page, NCCL", 5.0),
        ("qwen3_235b_a22b", "miles p2p page, NCCL", 10.8),
        ("glm5", "miles p2p page, NCCL", 58.3),
        ("qwen3_32b", "verl delta page, NCCL", 14.2),
    ):
        w = work(
            model, trainer={"dp": 8}, engine_tp=8, rollout_gpus=8, samples=512, longest=4096, response=2000,
            optimizer_steps=1, colocated=False,
        )  # fmt: skip
        found.append(Anchor(source, model, w, seconds, ("sync",)))
    return found


def main() -> None:
    for title, rows in (("step", anchors()), ("our own", measured()), ("weight sync", syncs())):
        print(f"{title:<40}{'published':>10}{'estimate':>10}{'ratio':>7}   source")
        for a in rows:
            time = estimate_time(replace(a.work, num_steps=1))
            parts = {phase.phase: phase.seconds for phase in time.phases}
            estimate = sum(parts[name] for name in a.phases) if a.phases else time.step_s
            figures = f"{a.seconds:>8.1f} s{estimate:>8.1f} s{estimate / a.seconds:>7.2f}"
            print(f"{a.name:<40}{figures}   {a.source}")
            if not a.phases:
                print("    " + ", ".join(f"{name} {value:.0f} s" for name, value in parts.items()))
        print()


if __name__ == "__main__":
    main()
