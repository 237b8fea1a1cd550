"""The stand-in for SGLang's memory saver on a CPU, on a module and a cache of a few MiB."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import torch
from torch import nn

from rlrun.backends.sglang import memory_cpu

ALL = ("kv_cache", "weights", "cuda_graph")
MANY = 1 << 20


def updater(backup: bool = False) -> SimpleNamespace:
    model = nn.Linear(1024, 1024)
    model.register_buffer("table", torch.ones(MANY))
    model.derived = model.weight.detach() * 2
    pool = SimpleNamespace(k_buffer=[torch.ones(MANY)], v_buffer=[torch.ones(MANY)])
    args = SimpleNamespace(enable_weights_cpu_backup=backup)
    runner = SimpleNamespace(model=model, token_to_kv_pool=pool, server_args=args)
    return SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))


def tell(act, it, *tags) -> str:
    return act(lambda updater, request: f"sglang did {request.tags}", it, SimpleNamespace(tags=list(tags)))


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


def test_what_is_released_is_gone_and_comes_back_without_its_values():
    it = updater()
    runner = it.tp_worker.model_runner
    weights = [runner.model.weight, runner.model.derived]  # 4 MiB each, as is all the rest
    caches = [*runner.token_to_kv_pool.k_buffer, *runner.token_to_kv_pool.v_buffer]
    addresses = [t.data_ptr() for t in weights + caches]
    before = resident_mib()
    assert tell(memory_cpu._release, it, *ALL) == f"sglang did {list(ALL)}"
    assert before - resident_mib() > 12
    tell(memory_cpu._resume, it, "weights")
    for tensor in (*weights, runner.model.bias):
        assert tensor.isnan().all()
    assert runner.model.table.eq(1).all()  # SGLang carries buffers over
    runner.model.weight.data.fill_(7.0)
    tell(memory_cpu._resume, it, "kv_cache", "cuda_graph")
    assert all(cache.eq(0).all() for cache in caches)
    assert runner.model.weight.eq(7).all()
    assert [t.data_ptr() for t in weights + caches] == addresses


def test_weights_that_nobody_sends_again_come_back_as_they_were():
    it = updater(backup=True)
    model = it.tp_worker.model_runner.model
    weights = [model.weight.detach(), model.bias.detach(), model.derived]
    before = [weight.clone() for weight in weights]
    for _ in range(2):
        tell(memory_cpu._release, it, *ALL)
        assert model.weight.eq(0).any()
        for weight in weights:
            weight.fill_(float("nan"))  # whoever had the memory meanwhile
        tell(memory_cpu._resume, it, "weights")
        assert all(weight.equal(kept) for weight, kept in zip(weights, before, strict=True))
        tell(memory_cpu._resume, it, "kv_cache", "cuda_graph")
