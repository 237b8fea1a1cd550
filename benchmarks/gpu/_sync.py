"""Weights to an engine, by every transport, beside the plainest way to move as many bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from _common import Part, say
from _engines import apart, checksums, differing, scores, server, serving, text
from _model import words
from _ranks import Ranks, broadcast

from rlrun.backends.base import EngineAddress
from rlrun.plan.build import load_plan
from rlrun.plan.types import RunPlan

DENSITIES = (0.01, 0.03)
REPEATS = 3
FAR = ("placement.mode=disaggregated", "placement.gpus_per_node=2", "weight_sync.transport=distributed")


class Weights:
    """The checkpoint's tensors on the trainer's device, which change as training changes them: some elements by a unit
    in the last place, up or down."""

    def __init__(self, plan: RunPlan):
        import torch
        from safetensors.torch import load_file

        self.torch, self.plan, self.version = torch, plan, 0
        self.device = "cuda:0" if plan.device == "cuda" else "cpu"
        loaded = load_file(f"{plan.model.path}/model.safetensors", device=self.device)
        self.named = {name: loaded[name] for name in self.names()}
        self.generator = torch.Generator(self.device).manual_seed(0)

    def names(self) -> list[str]:
        from rlrun.families import hf_shapes

        return list(hf_shapes(self.plan.model.spec))

    def change(self, density: float) -> tuple[int, int]:
        """(elements, those changed)."""
        torch, elements, changed = self.torch, 0, 0
        for tensor in self.named.values():
            bits = tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
            drawn = torch.rand(tensor.shape, generator=self.generator, device=self.device)
            step = (drawn < density).to(bits.dtype) - 2 * (drawn < density / 2).to(bits.dtype)
            bits += step
            elements, changed = elements + bits.numel(), changed + int(step.count_nonzero())
        return elements, changed

    def send(self, sender: Any) -> dict[str, float]:
        self.version += 1
        return sender.send(iter(self.named.items()), self.version, self.names())

    def buckets(self) -> list[int]:
        """Bytes of each transfer."""
        from rlrun.weight_sync.buckets import bucketize

        assert self.plan.sync is not None
        cut = bucketize(iter(self.named.items()), self.plan.sync.bucket_bytes)
        return [sum(t.numel() * t.element_size() for _, t in bucket) for bucket in cut]


def sync(part: Part) -> None:
    near, far = load_plan(words(part, graph=False)), load_plan(words(part, *FAR, graph=False))
    servers = [server(part, near, "near"), server(part, far, "far")]
    with serving(part, servers) as (beside, away):
        weights = Weights(near)
        total = sum(weights.buckets())
        part.row("bytes of the weights", total / 1e6, "MB")
        weights.change(max(DENSITIES))
        plain = copy_gb_per_s(weights)
        transport(part, near, beside, weights, plain, "copy on one GPU" if near.device == "cuda" else "copy")
        nccl = plain_broadcast(part, far, weights)
        transport(part, far, away, weights, nccl, f"plain {far.train.backend} broadcast")
        equal(part, near, (beside, away), "tensor and distributed")
        for words_of_delta, name in deltas(part):
            delta(part, load_plan(words(part, *words_of_delta, graph=False)), beside, weights, name)
            with connected(far, away) as sender:
                weights.send(sender)
            equal(part, near, (beside, away), f"{name} and distributed")


def connected(plan: RunPlan, engine: EngineAddress, files: Any = None) -> Any:
    """A sender with its transport open, as a context."""
    import contextlib

    from rlrun.weight_sync.senders import make_sender

    assert plan.sync is not None
    sender = make_sender(plan.sync, [engine], plan.device, plan.timeouts.sync_s, files)
    sender.connect()
    return contextlib.closing(sender)


def transport(part: Part, plan: RunPlan, engine: EngineAddress, weights: Weights, plain: float, against: str) -> None:
    """GB/s of a whole sync: packing, requests, transfer, loading by the engine, and the version read back."""
    assert plan.sync is not None
    with connected(plan, engine) as sender:
        sent = [weights.send(sender) for _ in range(REPEATS)]
    name = f"{plan.sync.transport} ({plan.sync.backend})"
    part.row(f"{name}: first sync", sent[0]["seconds"], "s")
    best = min(sent, key=lambda s: s["seconds"])
    part.row(f"{name}: best sync", best["seconds"], "s")
    part.row(f"{name}: rate", best["bytes"] / best["seconds"] / 1e9, "GB/s", plain, against)


def copy_gb_per_s(weights: Weights) -> float:
    """Every bucket copied once on the device."""
    torch, best = weights.torch, math.inf
    sources = [torch.ones(n, dtype=torch.uint8, device=weights.device) for n in weights.buckets()]
    targets = [torch.empty_like(source) for source in sources]
    for _ in range(REPEATS + 1):
        _wait(torch)
        began = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        _wait(torch)
        best = min(best, time.perf_counter() - began)
    return sum(weights.buckets()) / best / 1e9


def _wait(torch: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def plain_broadcast(part: Part, plan: RunPlan, weights: Weights) -> float:
    """The same buckets from one process to another, each with its own GPU, and nothing else: GB/s."""
    with Ranks(2) as ranks:
        args = (plan.train.backend, weights.buckets(), REPEATS + 1)
        seconds = ranks.run(2, broadcast, *args, deadline_s=part.left_s())
    return sum(weights.buckets()) / max(seconds) / 1e9


def equal(part: Part, plan: RunPlan, engines: Sequence[EngineAddress], name: str) -> None:
    """Two engines that were sent the same weights by different ways must give a text the same log-probs."""
    largest = apart(*(scores(engine, text(plan)) for engine in engines))[1]
    part.row(f"{name}: largest |dlogp| between their engines", largest, "nats")
    if plan.device == "cuda":
        part.row(f"{name}: weights that differ, by checksum", differing(*map(checksums, engines)))


def deltas(part: Part) -> list[tuple[tuple[str, ...], str]]:
    """Words and name of each way that changes can travel in this version."""
    from rlrun.config.keys import find_key

    found: list[tuple[tuple[str, ...], str]] = [(("weight_sync.transport=delta",), "delta")]
    if find_key("weight_sync.delta_over") is not None:
        say("weight_sync.delta_over is known")
    return found


def delta(part: Part, plan: RunPlan, engine: EngineAddress, weights: Weights, name: str) -> None:
    """Bytes beside n (H(p) + p) bits, the least in which steps up or down can be written; seconds beside those of all
    weights by the same way."""
    from rlrun.weight_sync.files import Files

    def never(named: Any, target: str) -> None:
        raise AssertionError("a delta writes no checkpoint")

    files = Files(str(part.folder("delta") / "files"), never)
    with connected(plan, engine, files) as sender:
        full = weights.send(sender)
        part.row(f"{name}: all weights", full["seconds"], "s")
        for density in DENSITIES:
            elements, changed = weights.change(density)
            p = changed / elements
            bound = elements * (-p * math.log2(p) - (1 - p) * math.log2(1 - p) + p) / 8
            sent = weights.send(sender)
            percent = f"{name}: {100 * density:g} % changed"
            part.row(f"{percent}, bytes", sent["bytes"] / 1e6, "MB", bound / 1e6, "entropy of the changes")
            part.row(f"{percent}, seconds", sent["seconds"], "s", full["seconds"], "all weights the same way")
            part.row(f"{percent}, engines that needed all weights", sent["full_updates"])
