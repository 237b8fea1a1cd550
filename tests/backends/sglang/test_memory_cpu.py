"""The stand-in for SGLang's memory saver on a CPU, on a module and a cache of a few numbers."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from rlrun.backends.sglang import memory_cpu

ALL = ("kv_cache", "weights", "cuda_graph")


def updater(backup: bool = False) -> SimpleNamespace:
    model = nn.Linear(3, 2)
    model.weight.data = torch.arange(6.0).reshape(2, 3)
    model.register_buffer("table", torch.ones(4))
    model.derived = model.weight.detach() * 2
    pool = SimpleNamespace(k_buffer=[torch.ones(5)], v_buffer=[torch.ones(5)])
    args = SimpleNamespace(enable_weights_cpu_backup=backup)
    runner = SimpleNamespace(model=model, token_to_kv_pool=pool, server_args=args)
    return SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))


def tell(act, it, *tags) -> str:
    return act(lambda updater, request: f"sglang did {request.tags}", it, SimpleNamespace(tags=list(tags)))


def sizes(runner) -> dict[str, int]:
    tensors = {
        "weight": runner.model.weight,
        "bias": runner.model.bias,
        "derived": runner.model.derived,
        "table": runner.model.table,
        "keys": runner.token_to_kv_pool.k_buffer[0],
        "values": runner.token_to_kv_pool.v_buffer[0],
    }
    return {name: tensor.untyped_storage().size() for name, tensor in tensors.items()}


def test_what_is_released_is_gone_and_comes_back_without_its_values():
    it = updater()
    runner = it.tp_worker.model_runner
    before = sizes(runner)
    assert tell(memory_cpu._release, it, *ALL) == f"sglang did {list(ALL)}"
    assert sizes(runner) == dict.fromkeys(before, 0) | {"table": before["table"]}
    tell(memory_cpu._resume, it, "weights")
    assert sizes(runner) == before | {"keys": 0, "values": 0}
    for tensor in (runner.model.weight, runner.model.bias, runner.model.derived):
        assert tensor.isnan().all()
    assert runner.model.table.eq(1).all()  # SGLang carries buffers over
    runner.model.weight.data.fill_(7.0)
    tell(memory_cpu._resume, it, "kv_cache", "cuda_graph")
    assert sizes(runner) == before
    assert runner.token_to_kv_pool.k_buffer[0].eq(0).all()
    assert runner.model.weight.eq(7).all()


def test_weights_that_nobody_sends_again_come_back_as_they_were():
    it = updater(backup=True)
    runner = it.tp_worker.model_runner
    before = sizes(runner)
    for _ in range(2):
        tell(memory_cpu._release, it, *ALL)
        assert sizes(runner) == dict.fromkeys(before, 0) | {"table": before["table"]}
        tell(memory_cpu._resume, it, "weights")
        assert sizes(runner) == before | {"keys": 0, "values": 0}
        assert runner.model.weight.flatten().tolist() == [0, 1, 2, 3, 4, 5]
        assert runner.model.derived.flatten().tolist() == [0, 2, 4, 6, 8, 10]
        tell(memory_cpu._resume, it, "kv_cache", "cuda_graph")
        assert sizes(runner) == before
        assert runner.token_to_kv_pool.k_buffer[0].eq(0).all()
