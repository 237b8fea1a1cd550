from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from rlrun.backends.sglang.args import router_command, server_command, server_env, visible_gpus
from rlrun.errors import RunFailed
from rlrun.plan.types import RouterPlan


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
