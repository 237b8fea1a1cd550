"""The senders against a small HTTP server that keeps weights as SGLang does."""

from __future__ import annotations

import base64
import pickle
import threading
import time
from concurrent.futures import Future

import pytest
import torch

from rlrun.errors import RunFailed
from rlrun.plan.types import SyncPlan
from rlrun.weight_sync.senders import beside_requests, check_names, flatten, make_sender

WEIGHTS = [
    ("embed", torch.arange(12, dtype=torch.float32).reshape(4, 3)),
    ("norm", torch.ones(3, dtype=torch.bfloat16)),
    ("head", torch.arange(12, dtype=torch.float32).reshape(3, 4).T),  # not contiguous
    ("bias", torch.zeros(2, dtype=torch.float32)),
]
NAMES = [name for name, _ in WEIGHTS]


def sender(addresses, bucket_bytes=1 << 20):
    plan = SyncPlan(transport="tensor", backend="value", bucket_bytes=bucket_bytes, verify="version", total_bytes=0)
    return make_sender(plan, addresses, "cpu", timeout_s=10)


@pytest.mark.parametrize("bucket_bytes", [1, 55, 1 << 20])
def test_every_engine_gets_every_weight_exactly(fake_engine, bucket_bytes):
    engines = [fake_engine(), fake_engine()]
    metrics = sender([e.address(i) for i, e in enumerate(engines)], bucket_bytes).send(iter(WEIGHTS), 5, NAMES)
    assert metrics["bytes"] == 12 * 4 + 3 * 2 + 12 * 4 + 2 * 4
    assert metrics["tensors"] == 4
    for engine in engines:
        assert sorted(engine.weights) == sorted(NAMES)
        for name, tensor in WEIGHTS:
            assert engine.weights[name].dtype == tensor.dtype
            assert torch.equal(engine.weights[name], tensor)
        assert engine.version == "5"


def test_only_the_last_bucket_carries_the_version_and_the_flush(fake_engine):
    engine = fake_engine()
    sender([engine.address(0)], bucket_bytes=1).send(WEIGHTS, 5, NAMES)
    assert [u["weight_version"] for u in engine.updates] == [None, None, None, "5"]
    assert [u["flush_cache"] for u in engine.updates] == [False, False, False, True]


@pytest.mark.parametrize("bucket_bytes", [1, 40, 1 << 20])
def test_a_latent_pair_arrives_in_one_update_and_packed_experts_without_single_ones(fake_engine, bucket_bytes):
    layers = [f"model.layers.{i}.self_attn." for i in range(2)]
    names = [layer + part for part in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa") for layer in layers]
    names += ["model.layers.0.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.0.up_proj"]
    weights = [(f"{name}.weight", torch.ones(2, 2)) for name in names]
    engine = fake_engine()
    sender([engine.address(0)], bucket_bytes).send(weights, 1, [name for name, _ in weights])
    assert sorted(engine.weights) == sorted(name for name, _ in weights)
    updates = [
        {meta.name for meta in pickle.loads(base64.b64decode(update["serialized_named_tensors"][0]))["metadata"]}
        for update in engine.updates
    ]
    for update in updates:
        for layer in layers:
            assert (f"{layer}q_a_proj.weight" in update) == (f"{layer}kv_a_proj_with_mqa.weight" in update)
        assert not {f"{names[-1]}.weight", f"{names[-2]}.weight"} <= update


def test_router_biases_keep_their_dtype_among_other_weights(fake_engine):
    bias = torch.tensor([0.1, -0.2, 0.30000001])
    weights = [("norm", torch.ones(3, dtype=torch.bfloat16)), ("gate.e_score_correction_bias", bias)]
    weights += [("odd", torch.ones(1, dtype=torch.bfloat16)), ("scale", torch.ones(1, dtype=torch.float64))]
    engine = fake_engine()
    sender([engine.address(0)]).send(weights, 1, [name for name, _ in weights])
    assert len(engine.updates) == 1
    for name, tensor in weights:
        assert engine.weights[name].dtype == tensor.dtype
        assert torch.equal(engine.weights[name], tensor)


def test_each_tensor_parallel_rank_gets_an_entry(fake_engine):
    engine = fake_engine()
    sender([engine.address(0, tp=2)]).send(WEIGHTS, 1, NAMES)
    first, second = engine.updates[0]["serialized_named_tensors"]
    assert first == second


@pytest.mark.parametrize(
    ("sent", "expected", "message"),
    [
        (WEIGHTS[:-1], NAMES, "did not send bias"),
        (WEIGHTS, NAMES[:-1], "sends bias which the engines do not expect"),
        ([*WEIGHTS, WEIGHTS[0]], NAMES, "sends embed twice"),
        ([WEIGHTS[1], *WEIGHTS], NAMES, "sends norm twice"),
        ([], NAMES, "did not send embed, norm, head, bias"),
    ],
)
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_wrong_names_are_refused_before_the_version_changes(fake_engine, sent, expected, message, bucket_bytes):
    engine = fake_engine()
    with pytest.raises(RunFailed, match=message):
        sender([engine.address(0)], bucket_bytes).send(sent, 9, expected)
    assert engine.version == "0"
    assert all(u["weight_version"] is None for u in engine.updates)


def test_many_missing_names_are_cut_short():
    with pytest.raises(RunFailed, match="did not send w0, w1, w2, w3, w4 and 15 more"):
        list(check_names([], [f"w{i}" for i in range(20)]))


def test_a_refusal_names_the_engine_and_its_reason(fake_engine):
    engines = [fake_engine(), fake_engine(refuse_at=1)]
    with pytest.raises(RunFailed) as error:
        sender([e.address(i) for i, e in enumerate(engines)], bucket_bytes=1).send(WEIGHTS, 2, NAMES)
    assert error.value.part == "engine 1"
    assert "out of memory" in error.value.summary
    assert [e.version for e in engines] == ["0", "0"]


def test_an_engine_that_is_gone_is_named(fake_engine):
    engine = fake_engine()
    address = engine.address(3)
    engine.server.shutdown()
    engine.server.server_close()
    with pytest.raises(RunFailed, match=r"engine 3: .*refused.*see engine_3.log"):
        sender([address]).send(WEIGHTS, 1, NAMES)


def test_a_version_that_does_not_come_back_fails(fake_engine):
    engine = fake_engine(reports="4")
    with pytest.raises(RunFailed, match="reports weight version '4' after a sync of version 5"):
        sender([engine.address(0)]).send(WEIGHTS, 5, NAMES)


def test_an_engine_that_will_not_join_the_group_fails_at_once(fake_engine):
    engine = fake_engine(refuse_at=0)
    plan = SyncPlan("distributed", "gloo", 1 << 20, "version", 0)
    sync = make_sender(plan, [engine.address(0)], "cpu", timeout_s=60)
    start = time.monotonic()
    with pytest.raises(RunFailed, match=r"engine 0: /init_weights_update_group failed .*out of memory"):
        sync.connect()
    assert time.monotonic() - start < 20
    sync.close()
    (body,) = engine.updates
    assert (body["backend"], body["world_size"], body["rank_offset"]) == ("gloo", 2, 1)


def test_a_collective_is_abandoned_when_an_engine_fails():
    stuck, failing = threading.Event(), Future()
    threading.Timer(0.1, failing.set_exception, [RunFailed("engine 2", "lost its GPU")]).start()
    with pytest.raises(RunFailed, match="engine 2: lost its GPU"):
        beside_requests(stuck.wait, [failing, Future()], "broadcasting", 60)
    stuck.set()


def test_a_collective_has_a_deadline():
    stuck = threading.Event()
    with pytest.raises(RunFailed, match=r"broadcasting was not done in 0\.1 s"):
        beside_requests(stuck.wait, [], "broadcasting", 0.1)
    stuck.set()


def test_a_collective_returns_when_all_sides_are_done():
    engine = Future()
    threading.Timer(0.1, engine.set_result, [None]).start()
    assert beside_requests(lambda: 7, [engine], "joining", 60) == 7
    assert engine.done()
    with pytest.raises(RunFailed, match="joining failed: peer closed"):
        beside_requests(lambda: (_ for _ in ()).throw(RuntimeError("peer closed")).__next__(), [], "joining", 60)


def test_flatten_lays_weights_end_to_end():
    flat = flatten([(name, tensor.contiguous()) for name, tensor in WEIGHTS])
    bounds = [(m.name, m.start_idx, m.end_idx, m.numel) for m in flat["metadata"]]
    assert bounds == [("embed", 0, 48, 48), ("norm", 48, 54, 6), ("head", 54, 102, 48), ("bias", 102, 110, 8)]
    assert flat["flattened_tensor"].numel() == 110
