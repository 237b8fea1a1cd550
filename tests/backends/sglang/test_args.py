from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from rlrun.backends.sglang.args import router_command, server_command, server_env, visible_gpus
from rlrun.config.arguments.check import check_argument, offered
from rlrun.config.arguments.table import Argument, table
from rlrun.config.origin import Origins
from rlrun.errors import RunFailed
from rlrun.plan.types import DeploymentPlan, LinearAttentionSpec, ModelSpec, RouterPlan, ServedModelPlan

TINY = ModelSpec("qwen3", 64, 2, 4, 2, 16, 128, 32, 1e-6, 1e4, 512, False, 0)


def options(command: list[str]) -> dict[str, str | None]:
    """--name value pairs; None for flags."""
    words = command[command.index("server") + 1 :] if "server" in command else command[command.index("router") + 1 :]
    found: dict[str, str | None] = {}
    for i, word in enumerate(words):
        if word.startswith("--"):
            value = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else None
            found[word[2:]] = value
    return found


def command_of(plan, index=0):
    return server_command(plan.engines[index], plan, "/models/tiny", 30001, 30002)


def test_a_cpu_engine_gets_the_settings_that_work_without_a_gpu(make_plan):
    got = options(command_of(make_plan(threads=2)))
    assert got["device"] == "cpu"
    assert got["attention-backend"] == "torch_native"
    assert got["dtype"] == "float32"
    assert got["max-total-tokens"] == "16384"
    assert "sleep-on-idle" in got
    assert "disable-overlap-schedule" in got
    assert "disable-cuda-graph" not in got


def test_a_seeded_engine_is_deterministic_and_an_unseeded_one_is_not(make_plan):
    seeded, plain = options(command_of(make_plan())), options(command_of(make_plan(seeded=False)))
    assert "enable-deterministic-inference" in seeded
    assert seeded["chunked-prefill-size"] == "-1"
    assert "enable-deterministic-inference" not in plain
    assert "chunked-prefill-size" not in plain


def test_glm5_is_served_by_another_class_on_cpu_alone(make_plan):
    spec = dataclasses.replace(TINY, family="glm_moe_dsa")
    on_cpu = options(command_of(make_plan(spec=spec)))
    assert json.loads(on_cpu["json-model-override-args"]) == {"architectures": ["Glm4MoeLiteForCausalLM"]}
    assert "json-model-override-args" not in options(command_of(make_plan()))
    assert "json-model-override-args" not in options(command_of(make_plan(spec=spec, device="cuda")))


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "float32"), ("cuda", "bfloat16")])
def test_a_delta_net_remembers_in_the_models_dtype(make_plan, device, dtype):
    spec = dataclasses.replace(TINY, family="qwen3_5", linear_attention=LinearAttentionSpec(2, 4, 32, 32, 4, 4))
    plan = make_plan(spec=spec, device=device)
    assert server_env(plan.engines[0], plan, {})["SGLANG_MAMBA_CONV_DTYPE"] == dtype
    plain = make_plan(device=device)
    assert "SGLANG_MAMBA_CONV_DTYPE" not in server_env(plain.engines[0], plain, {})


def test_cuda_graphs_follow_the_plan(make_plan):
    changes = {"device": "cuda", "attention_backend": "triton", "max_total_tokens": None, "mem_fraction_static": 0.6}
    without = options(command_of(make_plan(**changes)))
    assert "disable-cuda-graph" in without
    assert "disable-piecewise-cuda-graph" in without
    assert without["mem-fraction-static"] == "0.6"
    assert "max-total-tokens" not in without
    assert "sleep-on-idle" not in without
    graphs = options(command_of(make_plan(**changes, cuda_graph=True)))
    assert "disable-cuda-graph" not in graphs
    assert "disable-piecewise-cuda-graph" not in graphs


def test_further_arguments_come_after_ours_and_replace_them(make_plan):
    extra = (
        ("schedule_policy", "lpm"),
        ("disable_radix_cache", True),
        ("enable_mixed_chunk", False),
        ("disable_overlap_schedule", False),
        ("log_level_http", "info"),
        ("grammar_backend", None),
        ("chunked_prefill_size", -1),
        ("fp8_gemm_runner_backend", "triton"),
        ("radix_cache_backend", "-x"),
        ("gc_threshold", [700, 10]),
        ("extra_metric_labels", {"run": "a b"}),
    )
    plain, words = command_of(make_plan(seeded=False)), command_of(make_plan(seeded=False, extra=extra))
    got = options(words)
    assert got["schedule-policy"] == "lpm"
    assert got["log-level-http"] == "info"
    assert words[words.index("--chunked-prefill-size") + 1] == "-1"
    assert got["fp8-gemm-backend"] == "triton"
    assert "disable-radix-cache" in got
    assert "--disable-overlap-schedule" in plain
    assert not {"enable-mixed-chunk", "disable-overlap-schedule", "grammar-backend"} & set(got)
    assert words[words.index("--gc-threshold") + 1 :][:2] == ["700", "10"]
    assert json.loads(words[words.index("--extra-metric-labels") + 1]) == {"run": "a b"}
    assert "--radix-cache-backend=-x" in words
    given = [word.split("=")[0] for word in words if word.startswith("--")]
    assert len(given) == len(set(given))


def another(argument: Argument) -> object:
    """A value of an argument that is not its default."""
    kind = argument.types[0]
    choices = [choice for choice in argument.choices if choice not in (argument.default, None)]
    if choices:
        return [choices[-1]] if kind.startswith("list") else choices[-1]
    one = {
        "bool": argument.default is not True,
        "int": 7,
        "float": 0.75,
        "str": "some text",
        "mapping": {"a": {"b": 1}},
    }
    if argument.name == "cuda_graph_config":
        return {"decode": {"backend": "full"}}
    return [one[kind[5:-1]]] if kind.startswith("list") else one[kind]


PARSED = """
import argparse, json, sys
from rlrun.backends.sglang.cpu import install_torchvision_ops
install_torchvision_ops()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print("<<<" + json.dumps(vars(parser.parse_args(sys.argv[1:])), default=str))
"""


@pytest.mark.engines
def test_every_argument_that_may_be_set_is_understood_by_the_installed_sglang_as_written(make_plan):
    known = table("sglang").arguments
    own = ("attention_backend", "max_running_requests", "max_total_tokens", "log_level", "mem_fraction_static")
    written = {name: another(known[name]) for name in offered("sglang") if name not in own}
    assert [name for name, value in written.items() if check_argument("sglang", name, value, "s", Origins())] == []
    plan = make_plan(
        device="cuda",
        attention_backend="triton",
        seeded=False,
        cuda_graph=True,
        backend="nccl",
        extra=tuple(written.items()),
    )
    words = command_of(plan)
    run = [sys.executable, "-c", PARSED, *words[words.index("server") + 1 :]]
    out = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr[-2000:]
    got = json.loads(out.stdout.split("<<<")[1])
    assert {name: (value, got[name]) for name, value in written.items() if got[name] != value} == {}


PREPARED = """
import dataclasses, json, sys
from rlrun.backends.sglang.cpu import install_torchvision_ops
install_torchvision_ops()
from sglang.srt.server_args import prepare_server_args
args = prepare_server_args(sys.argv[1:])
print("<<<" + json.dumps({f.name: getattr(args, f.name) for f in dataclasses.fields(args)}, default=str))
"""


@pytest.mark.engines
def test_sglang_keeps_further_arguments_when_it_prepares_a_server(make_plan, make_model, tmp_path):
    """What SGLang makes of its whole command line, defaults that depend on each other included."""
    extra = {
        "schedule_policy": "lpm",
        "page_size": 4,
        "watchdog_timeout": 77.5,
        "disable_overlap_schedule": False,
        "gc_threshold": [700, 10],
        "extra_metric_labels": {"run": "a b"},
        "kv_cache_dtype": "bfloat16",
        "log_level_http": None,
    }
    plan = make_plan(seeded=False, extra=tuple(extra.items()))
    words = server_command(plan.engines[0], plan, make_model(str(tmp_path), plan), 30001, 30002)
    run = [sys.executable, "-c", PREPARED, *words[words.index("server") + 1 :]]
    env = server_env(plan.engines[0], plan, os.environ)
    out = subprocess.run(run, capture_output=True, text=True, timeout=400, env=env)
    assert out.returncode == 0, out.stderr[-2000:]
    got = json.loads(out.stdout.split("<<<")[1])
    assert {name: got[name] for name in extra} == extra


def test_engines_sample_from_different_seeds(make_plan):
    plan = make_plan(3)
    assert [options(command_of(plan, i))["random-seed"] for i in range(3)] == ["1234", "1235", "1236"]


def test_the_weights_on_disk_are_version_0(make_plan):
    assert options(command_of(make_plan()))["weight-version"] == "0"


def test_threads_reach_openmp_and_mkl_on_cpu_only(make_plan):
    cpu = make_plan(threads=3)
    env = server_env(cpu.engines[0], cpu, {"PATH": "/bin"})
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"], env["PATH"]) == ("3", "3", "/bin")
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["SGLANG_USE_CPU_ENGINE"] == "1"
    cuda = make_plan(device="cuda", backend="nccl")
    assert not {"OMP_NUM_THREADS", "SGLANG_USE_CPU_ENGINE"} & set(server_env(cuda.engines[0], cuda, {}))


def test_tensor_parallel_ranks_each_get_a_thread_binding_on_cpu(make_plan):
    plan = make_plan(tp=2)
    assert server_env(plan.engines[0], plan, {})["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"


def test_an_engine_sees_its_own_gpus_first(make_plan):
    plan = make_plan(2, tp=2, device="cuda", backend="nccl")
    assert visible_gpus(plan.engines[1], plan) == ["2", "3"]
    assert visible_gpus(plan.engines[1], plan, ["7", "5", "3", "1"]) == ["3", "1"]
    assert server_env(plan.engines[1], plan, {})["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_nccl_uses_the_same_memory_handles_in_engines_and_trainer(make_plan):
    plan = make_plan(device="cuda", backend="nccl")
    assert server_env(plan.engines[0], plan, {})["NCCL_CUMEM_ENABLE"] == "1"
    assert server_env(plan.engines[0], plan, {"NCCL_CUMEM_ENABLE": "0"})["NCCL_CUMEM_ENABLE"] == "0"


def test_cuda_ipc_adds_the_gpu_of_trainer_rank_0_last(make_plan):
    plan = make_plan(2, tp=2, device="cuda", backend="cuda_ipc")
    assert visible_gpus(plan.engines[0], plan) == ["0", "1"]
    assert visible_gpus(plan.engines[1], plan) == ["2", "3", "0"]
    assert visible_gpus(plan.engines[1], plan, ["7", "5", "3", "1"]) == ["3", "1", "7"]


def test_cuda_ipc_across_nodes_is_refused_with_the_way_out(make_plan):
    plan = make_plan(2, device="cuda", backend="cuda_ipc", gpus_per_node=1)
    with pytest.raises(RunFailed, match="CUDA IPC does not cross nodes") as error:
        visible_gpus(plan.engines[1], plan)
    assert error.value.hint == "set weight_sync.transport=distributed"


DECLARED = """
import dataclasses, json, sys
from rlrun.backends.sglang.cpu import install_torchvision_ops
install_torchvision_ops()
from sglang.srt.server_args import ServerArgs
from sglang_router.router_args import RouterArgs
print(json.dumps([[f.name for f in dataclasses.fields(c)] for c in (ServerArgs, RouterArgs)]))
"""


@pytest.mark.engines
def test_the_installed_sglang_declares_every_argument(make_plan):
    out = subprocess.run([sys.executable, "-c", DECLARED], capture_output=True, text=True, check=True, timeout=120)
    server, router = (set(names) for names in json.loads(out.stdout.splitlines()[-1]))
    plans = [
        make_plan(),
        make_plan(device="cuda", attention_backend="triton", mem_fraction_static=0.5, backend="nccl"),
    ]
    given = {name.replace("-", "_") for plan in plans for name in options(command_of(plan))}
    # argparse also takes older spellings, which ServerArgs turns into other fields
    assert given - server <= {"disable_piecewise_cuda_graph"}
    command = router_command(RouterPlan("round_robin", None), 1, "127.0.0.1", 2)
    assert {name.replace("-", "_") for name in options(command)} <= router


def test_sizes_of_an_engine_reach_sglang(make_plan):
    plan = make_plan()
    engine = dataclasses.replace(plan.engines[0], tp=4, pp=2, ep=4, dp_attention=2)
    given = options(command_of(dataclasses.replace(plan, engines=(engine,))))
    wanted = {"tp-size": "4", "pp-size": "2", "ep-size": "4", "dp-size": "2"}
    assert {name: given[name] for name in wanted} == wanted
    assert "enable-dp-attention" in given
    assert not {"pp-size", "ep-size", "dp-size", "enable-dp-attention"} & set(options(command_of(plan)))


def test_a_plan_is_left_as_it_was(make_plan):
    plan = make_plan()
    before = dataclasses.asdict(plan.engines[0])
    command_of(plan)
    assert dataclasses.asdict(plan.engines[0]) == before


JUDGE = ServedModelPlan("judge", "/models/judge", (1,), None, dtype="bfloat16", context_length=512)


def with_judge(plan, **judge):
    """The plan with its second engine for a frozen model."""
    policy, second = plan.engines
    frozen = dataclasses.replace(second, model="judge", context_length=512, **judge)
    return dataclasses.replace(plan, engines=(policy, frozen), deployment=DeploymentPlan(models=(JUDGE,)))


def judge_command(plan, folder):
    return options(server_command(plan.engines[1], plan, str(folder), 30001, 30002))


def test_a_frozen_model_is_served_with_its_own_type_context_and_no_version(make_plan, tmp_path):
    plan = with_judge(make_plan(2))
    policy, judge = options(command_of(plan)), judge_command(plan, tmp_path)
    assert (policy["dtype"], policy["context-length"], policy["weight-version"]) == ("float32", "256", "0")
    assert (judge["dtype"], judge["context-length"]) == ("bfloat16", "512")
    assert "weight-version" not in judge
    assert "context-length" not in judge_command(
        dataclasses.replace(plan, engines=(plan.engines[0], dataclasses.replace(plan.engines[1], context_length=None))),
        tmp_path,
    )
    assert server_env(plan.engines[1], plan, {})["SGLANG_MAMBA_CONV_DTYPE"] == "bfloat16"
    assert "SGLANG_MAMBA_CONV_DTYPE" not in server_env(plan.engines[0], plan, {})


def test_a_frozen_model_is_of_its_own_family(make_plan, tmp_path):
    spec = dataclasses.replace(TINY, family="glm_moe_dsa")
    assert "json-model-override-args" not in judge_command(with_judge(make_plan(2, spec=spec)), tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "glm_moe_dsa"}')
    assert "json-model-override-args" in judge_command(with_judge(make_plan(2)), tmp_path)


def test_only_a_frozen_model_that_makes_room_keeps_its_weights_on_the_host(make_plan, tmp_path):
    plan = with_judge(make_plan(2, device="cuda", offload=True))
    assert "enable-memory-saver" in options(command_of(plan))
    assert "enable-weights-cpu-backup" not in options(command_of(plan))
    assert {"enable-memory-saver", "enable-weights-cpu-backup"} <= judge_command(plan, tmp_path).keys()
    apart = with_judge(make_plan(2, device="cuda", offload=True), offload=False)
    assert not {"enable-memory-saver", "enable-weights-cpu-backup"} & judge_command(apart, tmp_path).keys()
    on_cpu = judge_command(with_judge(make_plan(2, offload=True)), tmp_path)
    assert "enable-memory-saver" not in on_cpu
    assert "enable-weights-cpu-backup" in on_cpu


def test_a_frozen_model_needs_no_gpu_of_the_trainer(make_plan):
    plan = with_judge(make_plan(2, device="cuda", backend="cuda_ipc", gpus_per_node=1))
    assert visible_gpus(plan.engines[1], plan) == ["0"]  # of the second node, where no trainer rank is
