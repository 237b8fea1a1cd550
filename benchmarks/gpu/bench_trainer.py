"""One trainer rank against the plan: peak memory of each phase, tokens a second and MFU, for random weights of a shape.

    python benchmarks/gpu/bench_trainer.py                 # the table, on an NVIDIA GPU
    python benchmarks/gpu/bench_trainer.py --families      # layers of Qwen3.5, GLM-4.7-Flash and other families
    python benchmarks/gpu/bench_trainer.py --tiny          # the same code with tiny models on this CPU, no memory

For each case: what torch's allocator saw at the worst moment, in GiB, and the plan's prediction (`rlrun.plan.memory`)
over it. The allocator does not see the CUDA context, which the plan's overhead allows for, so that term and those of
the engine are left out. `per 1k` is the peak above the state in MiB a thousand tokens of a micro-batch: the same for
one sample of 8, 16 and 32 thousand tokens when memory is linear in the length.

Seen on one H200 (torch 2.11, megatron-core 0.16.1): every ratio between 0.99 and 1.04; MFU 17 to 34 % for Qwen3-0.6B
and 28 to 30 % for Qwen3-4B with full recomputation.
"""

from __future__ import annotations

import argparse
import functools
import gc
import socket
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlrun.backends.base import Rendezvous
from rlrun.backends.megatron import device
from rlrun.backends.megatron.model import build_model
from rlrun.backends.megatron.trainer import MegatronTrainer
from rlrun.data.types import TrainBatch
from rlrun.plan.build import load_plan
from rlrun.plan.estimate.flops import causal_pairs, forward
from rlrun.plan.types import RunPlan

GIB = 2**30
PEAK_TFLOPS = 989.0  # dense bfloat16 of an H100 or H200 (NVIDIA's data sheet, without sparsity)
STEPS = 3


@dataclass(frozen=True)
class Case:
    model: str
    tokens: int  # of one packed micro-batch
    samples: int  # in it
    micro_batches: int
    recompute: str
    shape: dict[str, int] = field(default_factory=dict)  # other values of model.architecture: fewer layers, experts


CASES = [
    Case("qwen3_0_6b", 8192, 1, 1, "none"),
    Case("qwen3_0_6b", 16384, 1, 1, "none"),
    Case("qwen3_0_6b", 32768, 1, 1, "none"),
    Case("qwen3_0_6b", 16384, 8, 2, "none"),
    Case("qwen3_0_6b", 16384, 8, 2, "full"),
    Case("qwen3_4b", 16384, 8, 2, "full"),
    Case("qwen3_4b", 16384, 1, 1, "full"),
]
FEW = {"num_hidden_layers": 4, "num_experts": 32}
FAMILIES = [
    Case("qwen3_5_0_8b", 8192, 8, 1, "none"),
    Case("qwen3_5_0_8b", 16384, 8, 1, "full"),
    Case("qwen3_5_35b_a3b", 8192, 4, 1, "none", FEW),
    Case("glm4_7_flash", 8192, 4, 1, "none", FEW),
    Case("glm4_7_flash", 16384, 8, 1, "full", FEW),
    Case("qwen3_30b_a3b", 8192, 4, 1, "none", FEW),
    Case("glm4_9b", 8192, 4, 1, "none", {"num_hidden_layers": 4}),
    Case("glm4_5_air", 8192, 4, 1, "none", FEW),
    Case("minimax_m2", 8192, 4, 1, "none", FEW),
    Case("glm5", 4096, 2, 1, "none", {"num_hidden_layers": 4, "num_experts": 8}),
]
TINY = [
    Case("tiny_qwen3", 256, 4, 2, "none"),
    Case("tiny_qwen3", 256, 1, 1, "full"),
    Case("tiny_qwen3_5", 256, 4, 1, "none"),
    Case("tiny_glm4_moe_lite", 256, 4, 1, "none"),
]


class RandomTrainer(MegatronTrainer):
    """Megatron's own initial weights: a checkpoint of this size would only be read to be timed."""

    def _load_model(self, model_dir: str) -> Any:
        return build_model(self.plan.model.spec, self.plan.train, self.dtype)


def plan_of(case: Case) -> RunPlan:
    longest = case.tokens // case.samples
    common = [f"rollout.max_prompt_tokens={longest // 2}", f"rollout.max_response_tokens={longest - longest // 2}"]
    common += [
        f"trainer.max_tokens_per_gpu={case.tokens}",
        f"trainer.recompute={case.recompute}",
        "timeouts.generate_s=1e5",
    ]
    if case.model.startswith("tiny"):
        return load_plan(["+experiment=quickstart", f"model={case.model}", *common])
    gpu = ["placement=gpu_1", "placement.gpu=h200_141gb", "rollout.sglang.mem_fraction_static=0.2"]
    model = [f"model={case.model}", "model.path=rlrun/random"]
    shape = {"max_position_embeddings": 65536} | case.shape
    model += [f"model.architecture.{key}={value}" for key, value in shape.items()]
    return load_plan(["+experiment=qwen3_grpo", *gpu, *model, *common])


def batch_of(case: Case, vocab: int) -> TrainBatch:
    rng = np.random.default_rng(0)
    n, length = case.samples * case.micro_batches, case.tokens // case.samples
    total = n * (length - 1)
    tokens = [rng.integers(0, vocab, length) for _ in range(n)]

    def each(value: float) -> list[np.ndarray]:
        return [np.concatenate([[0.0], np.full(length - 1, value)]).astype(np.float32) for _ in range(n)]

    micro_batches = [list(range(i, i + case.samples)) for i in range(0, n, case.samples)]
    names = {"advantages": each(1.0), "old_logprobs": each(-11.0), "rollout_logprobs": each(-11.0)}
    return TrainBatch(tokens=tokens, micro_batches=micro_batches, loss_weights=each(1 / total), **names)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Meter:
    """Peak of torch's allocator around a piece of work, and its seconds."""

    def __init__(self, cuda: bool):
        self.cuda = cuda

    def __call__(self, work: Any) -> tuple[float, float]:
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        work()
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began, torch.cuda.max_memory_allocated() / GIB if self.cuda else float("nan")

    def now(self) -> float:
        return torch.cuda.memory_allocated() / GIB if self.cuda else float("nan")


def predicted(plan: RunPlan, phase: str) -> tuple[float, float]:
    """(GiB of the trainer in a phase, of which state), without overheads and without the engine."""
    if plan.memory is None:
        return float("nan"), float("nan")
    terms = {t.name: t.num_bytes / GIB for p in plan.memory.phases if p.phase == phase for t in p.terms}
    engine = {name for name in terms if name.startswith(("engine", "overhead", "KV"))}
    state = sum(terms.get(name, 0.0) for name in ("weights", "gradients", "optimizer"))
    return sum(v for name, v in terms.items() if name not in engine), state


def flops(plan: RunPlan, case: Case) -> float:
    """Of one step, three times the forward pass; recomputation is not counted (MFU, not HFU)."""
    length, samples = case.tokens // case.samples, case.samples * case.micro_batches
    return 3 * samples * forward(plan.model.spec).sequence(length, causal_pairs(length))


HEAD = (
    f"{'model':<18} {'samples':<9} {'mb':<3}{'recomp':<7} {'state':>6} {'plan/':>6} {'train':>6} {'plan/':>6} "
    f"{'fwd':>6} {'plan/':>6} {'per 1k':>7} {'step s':>7} {'tok/s':>7} {'MFU':>6} {'fwd tok/s':>10}"
)


def measure(case: Case) -> str:
    """One row of the table."""
    plan = plan_of(case)
    trainer, meter = RandomTrainer(plan), Meter(plan.device == "cuda")
    trainer.start(Rendezvous(0, 1, "127.0.0.1", free_port()), "")
    batch = batch_of(case, plan.model.spec.vocab_size)
    trainer.train_step(batch)  # compiles, and makes the optimizer's moments
    state = meter.now()
    forward_s, forward = meter(functools.partial(trainer.logprobs, batch))
    runs = [meter(functools.partial(trainer.train_step, batch)) for _ in range(STEPS)]
    seconds, peak = min(s for s, _ in runs), max(p for _, p in runs)
    trainer.close()
    (want, want_state), (want_forward, _) = predicted(plan, "train"), predicted(plan, "logprob")
    tokens = case.tokens * case.micro_batches
    mfu = 100 * flops(plan, case) / seconds / PEAK_TFLOPS / 1e12
    samples = f"{case.samples}x{case.tokens // case.samples}"
    return (
        f"{case.model:<18} {samples:<9} {case.micro_batches:<3}{case.recompute:<7} "
        f"{state:6.1f} {want_state / state:6.2f} {peak:6.1f} {want / peak:6.2f} "
        f"{forward:6.1f} {want_forward / forward:6.2f} "
        f"{1024 * (peak - state) / (case.tokens / 1024):7.0f} {seconds:7.3f} {tokens / seconds:7.0f} {mfu:5.1f}% "
        f"{tokens / forward_s:10.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="tiny models on this CPU")
    parser.add_argument("--families", action="store_true", help="a few layers of every other family")
    asked = parser.parse_args()
    print(HEAD)
    for case in TINY if asked.tiny else FAMILIES if asked.families else CASES:
        try:
            print(measure(case), flush=True)
        except Exception as e:  # the other cases still count
            where = traceback.extract_tb(e.__traceback__)[-1]
            said = (str(e).splitlines() or [""])[0]
            print(f"{case.model}: {type(e).__name__} at {where.filename}:{where.lineno}: {said}", flush=True)
            device.leave()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
