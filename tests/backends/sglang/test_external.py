"""What an external server says of itself against the plan, and waiting for one."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace

import pytest

from rlrun.backends.sglang import external
from rlrun.backends.sglang.external import Found, Unreachable, differences, look_at
from rlrun.families import hf_config
from rlrun.plan.build import load_plan
from rlrun.runtime.external import ExternalActor

VERSION = importlib.metadata.version("sglang")


@pytest.fixture(scope="module")
def plan():
    return load_plan(["+experiment=quickstart"])  # seeded, float32, prompt 8, response 3


@pytest.fixture
def folder(plan, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**hf_config(plan.model.spec), "torch_dtype": "float32"}))
    return tmp_path


def server(folder, **changes):
    told = {
        "version": VERSION,
        "tp_size": 2,
        "pp_size": 1,
        "dp_size": 1,
        "dtype": "float32",
        "context_length": 19,
        "max_total_num_tokens": 4096,
        "disaggregation_mode": "null",
        "enable_deterministic_inference": True,
        "quantization": None,
        "random_seed": 77,
        "mem_fraction_static": 0.3,
    }
    return Found(told | changes, {"model_type": "qwen3", "model_path": str(folder), "is_generation": True})


def test_a_server_as_the_plan_has_it_is_accepted_whatever_its_seed_and_memory(plan, folder):
    found = server(folder)
    assert differences(plan, found, str(folder)) == []
    assert found.tp == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.5.12"}, f"SGLang 0.5.12, not {VERSION}"),
        ({"dtype": "bfloat16"}, "dtype bfloat16, not float32 (--dtype float32)"),
        ({"dtype": "auto"}, "dtype float16 (auto), not float32 (--dtype float32)"),
        ({"context_length": 18}, "a context of 18 tokens, less than the 19"),
        ({"max_total_num_tokens": 10}, "a KV cache of 10 tokens"),
        ({"pp_size": 2}, "pp_size 2: weights are sent to tensor-parallel ranks only"),
        ({"dp_size": 2}, "dp_size 2"),
        ({"disaggregation_mode": "decode"}, "a decode server"),
        ({"enable_deterministic_inference": False}, "--enable-deterministic-inference"),
        ({"quantization": "fp8"}, "quantized by fp8"),
        ({"skip_tokenizer_init": True}, "skip_tokenizer_init is on"),
        ({"allow_auto_truncate": True}, "allow_auto_truncate is on"),
        ({"preferred_sampling_params": '{"top_k": 5}'}, "preferred_sampling_params"),
    ],
)
def test_each_difference_is_told(plan, folder, changes, said):
    [found] = differences(plan, server(folder, **changes), str(folder))
    assert said in found


def test_all_differences_are_told_together(plan, folder):
    found = server(folder, version="0.1", dtype="bfloat16", context_length=4, pp_size=4)
    assert len(differences(plan, found, str(folder))) == 4


def test_auto_is_the_type_of_config_json_but_never_float32(plan, folder):
    bfloat16 = replace(plan, model=replace(plan.model, dtype="bfloat16"))
    (folder / "config.json").write_text(json.dumps({**hf_config(plan.model.spec), "torch_dtype": "bfloat16"}))
    assert differences(bfloat16, server(folder, dtype="auto"), str(folder)) == []


def test_the_model_is_compared_by_type_and_where_it_can_be_read_by_every_size(plan, folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    spec = replace(plan.model.spec, hidden_size=64, num_layers=3, num_parameters=1, max_position_embeddings=99)
    (other / "config.json").write_text(json.dumps(hf_config(spec)))
    assert differences(plan, server(other), str(folder)) == ["hidden_size 64, not 128", "num_layers 3, not 2"]
    llama = Found(server(folder).server, {"model_type": "llama", "model_path": str(folder)})
    assert differences(plan, llama, str(folder)) == ["a model of type llama, not qwen3"]
    elsewhere = Found(server(folder).server, {"model_type": "qwen3", "model_path": "/not/on/this/machine"})
    assert differences(plan, elsewhere, str(folder)) == []


def test_a_context_that_nobody_set_is_the_models_own(plan, folder):
    (folder / "config.json").write_text(json.dumps({**hf_config(plan.model.spec), "max_position_embeddings": 16}))
    [found] = differences(plan, server(folder, context_length=None), str(folder))
    assert "a context of 16 tokens" in found


def test_waiting_ends_at_the_deadline_with_what_was_seen(monkeypatch):
    monkeypatch.setattr(external, "POLL_S", 0.001)
    for status, said in (
        (None, "nothing answers within timeouts.start_s = 0.01 s"),
        (503, "/health answers with HTTP"),
    ):
        monkeypatch.setattr(external, "http_status", lambda url, status=status: status)
        with pytest.raises(Unreachable, match=said):
            look_at("http://node7:30000", 0.01)
    monkeypatch.setattr(external, "http_status", lambda url: 401)
    with pytest.raises(Unreachable, match="asks for a key"):
        look_at("http://node7:30000", 60.0)


def test_something_else_than_sglang_is_not_attached(monkeypatch):
    monkeypatch.setattr(external, "http_status", lambda url: 200)
    monkeypatch.setattr(external, "http_json", lambda url, timeout_s: {"hello": 1})
    with pytest.raises(Unreachable, match="no SGLang server"):
        look_at("http://node7:30000", 1.0)
    monkeypatch.setattr(external, "http_json", lambda url, timeout_s: (_ for _ in ()).throw(OSError("HTTP Error 404")))
    with pytest.raises(Unreachable, match="does not say what it is: HTTP Error 404"):
        look_at("http://node7:30000", 1.0)


def test_a_server_that_nobody_listens_at_is_gone_after_a_few_probes(monkeypatch):
    monkeypatch.setattr("rlrun.runtime.external.PROBE_S", 0.001)
    answers = iter([None, "Connection refused", None, "Connection refused", "Connection refused", "Connection refused"])
    actor = ExternalActor("http://node7:30000")
    monkeypatch.setattr(actor, "_probe", lambda: next(answers))
    assert "does not answer any more (Connection refused" in actor.wait_gone()
    assert next(answers, "all used") == "all used"


def test_a_slow_server_is_not_gone_until_it_was_silent_for_long(monkeypatch):
    monkeypatch.setattr("rlrun.runtime.external.PROBE_S", 0.001)
    probes = []
    actor = ExternalActor("http://node7:30000")

    def probe():
        probes.append(1)
        if len(probes) == 10:
            monkeypatch.setattr("rlrun.runtime.external.SILENT_S", 0.0)
        return "no answer"

    monkeypatch.setattr(actor, "_probe", probe)
    assert "(no answer" in actor.wait_gone()
    assert len(probes) == 10
