"""The plan in SGLang's spelling: command lines and environments of servers and router. What is constant here was
measured to work, with the reason; arguments that a user passes on (`EnginePlan.extra`) come last and replace it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.config.arguments.sglang import ALWAYS, FAMILY_ON_CPU, ON_CPU
from rlrun.config.arguments.table import table
from rlrun.errors import RunFailed
from rlrun.plan.groups import POLICY
from rlrun.plan.served import family_of
from rlrun.plan.types import EnginePlan, RouterPlan, RunPlan

INITIAL_VERSION = 0
"""Weight version of the checkpoint that a server loads at start."""

LAUNCH = ("-m", "rlrun.backends.sglang.launch")


def server_command(
    engine: EnginePlan, plan: RunPlan, model_dir: str, port: int, dist_port: int, host: str = "127.0.0.1"
) -> list[str]:
    """Command line of one engine; `dist_port` is where its tensor-parallel ranks meet."""
    options: dict[str, Any] = {
        "model-path": model_dir,
        "host": host,
        "port": port,
        "dist-init-addr": f"{host}:{dist_port}",
        "tp-size": engine.tp,
        "dtype": _dtype(engine, plan),
        "device": plan.device,
        "context-length": engine.context_length,
        "attention-backend": engine.attention_backend,
        "max-running-requests": engine.max_running_requests,
        "random-seed": plan.seed + engine.index,
        "log-level": engine.log_level,
        **_options(ALWAYS),
    }
    for name, size in (("pp-size", engine.pp), ("ep-size", engine.ep), ("dp-size", engine.dp_attention)):
        if size > 1:
            options[name] = size
    if engine.dp_attention > 1:
        options["enable-dp-attention"] = True
    if engine.max_total_tokens is not None:
        options["max-total-tokens"] = engine.max_total_tokens
    if engine.mem_fraction_static is not None:
        options["mem-fraction-static"] = engine.mem_fraction_static
    if engine.seeded:
        options["enable-deterministic-inference"] = True
    if engine.model == POLICY:
        options["weight-version"] = INITIAL_VERSION
    if engine.offload:
        options["enable-memory-saver"] = plan.device == "cuda"  # on cpu a hook of ours does its work
        options["enable-weights-cpu-backup"] = engine.model != POLICY  # nobody sends a frozen model its weights
    if plan.device == "cpu":
        family = plan.model.spec.family if engine.model == POLICY else family_of(Path(model_dir))
        options |= _options(ON_CPU) | _options(FAMILY_ON_CPU.get(family or "", {}))
        # Only a bound here (the cache has max-total-tokens); SGLang's own estimate can come out negative.
        options["mem-fraction-static"] = 0.5
        # Only the triton and flashinfer backends keep chunks aligned, so a seeded prompt is prefilled in one piece.
        if engine.seeded:
            options["chunked-prefill-size"] = -1
    elif not engine.cuda_graph:
        options |= {"disable-cuda-graph": True, "disable-piecewise-cuda-graph": True}
    command = [sys.executable, *LAUNCH, "server"]
    for flag, value in (options | _options(dict(engine.extra))).items():
        command += _words(flag, value)
    return command


def _dtype(engine: EnginePlan, plan: RunPlan) -> str:
    """Of the model that the engine serves."""
    return next((model.dtype for model in plan.deployment.models if model.name == engine.model), plan.model.dtype)


def _options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by SGLang's names -> by the flags of its command line."""
    known = table("sglang").arguments
    as_json = {name for name in arguments if known[name].how == "json"}
    return {
        known[name].flag: json.dumps(value) if name in as_json and value is not None else value
        for name, value in arguments.items()
    }


def _words(flag: str, value: Any) -> list[str]:
    """One option of the command line; none for what is off or left to SGLang."""
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    text = str(value)
    # argparse takes a text that begins with a dash for another option; numbers it knows.
    return [f"--{flag}={text}"] if isinstance(value, str) and text.startswith("-") else [f"--{flag}", text]


def server_env(
    engine: EnginePlan, plan: RunPlan, base: Mapping[str, str], slot_gpus: Sequence[str] = ()
) -> dict[str, str]:
    """Environment of one engine: `base` (usually os.environ) with our settings on top. `slot_gpus`: see
    `visible_gpus`."""
    env = dict(base)
    env.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1")
    if plan.model.spec.linear_attention is not None or engine.model != POLICY:
        # What a convolution has seen last is kept in bfloat16 unless told otherwise: of a float32 model, decoding then
        # differs from prefill by 1e-2. A model without convolutions does not look at it.
        env["SGLANG_MAMBA_CONV_DTYPE"] = _dtype(engine, plan)
    if plan.device == "cpu":
        env.update(
            CUDA_VISIBLE_DEVICES="",
            SGLANG_USE_CPU_ENGINE="1",
            OMP_NUM_THREADS=str(engine.threads),
            MKL_NUM_THREADS=str(engine.threads),
        )
        if engine.tp > 1:  # SGLang insists on one entry a rank; nothing is bound without AMX
            env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(engine.tp))
    else:
        if plan.sync is not None and plan.sync.backend == "nccl":
            # SGLang turns it off unless it is set; a trainer with NCCL's default could then not read its memory
            # ("invalid argument" in the first broadcast). The trainer inherits the same variable when a user sets it.
            env.setdefault("NCCL_CUMEM_ENABLE", "1")
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible_gpus(engine, plan, slot_gpus))
    return env


def visible_gpus(engine: EnginePlan, plan: RunPlan, slot_gpus: Sequence[str] = ()) -> list[str]:
    """GPUs of the engine's node that it may see: its own first, in rank order, and for CUDA IPC also that of trainer
    rank 0, whose memory it reads at weight sync.

    `slot_gpus` are the ids that the cluster gave to `plan.slots`, in that order; without them the plan's own numbers
    count. Raises RunFailed when CUDA IPC would have to cross nodes.
    """
    assert len(slot_gpus) in (0, len(plan.slots)), f"{len(slot_gpus)} GPU ids for {len(plan.slots)} slots"
    ids = list(slot_gpus) or [str(slot.gpu) for slot in plan.slots]
    slots = [plan.slots[index] for index in engine.slots]
    assert len({slot.node for slot in slots}) == 1, f"engine {engine.index} spans nodes"
    gpus = [ids[index] for index in engine.slots]
    if engine.model == POLICY and plan.sync is not None and plan.sync.backend == "cuda_ipc":
        first = plan.train.slots[0]
        trainer = plan.slots[first]
        if trainer.node != slots[0].node:
            raise RunFailed(
                f"engine {engine.index}",
                f"is on node {slots[0].node}, trainer rank 0 on node {trainer.node}: CUDA IPC does not cross nodes",
                "set weight_sync.transport=distributed",
            )
        if ids[first] not in gpus:
            gpus.append(ids[first])
    return gpus


def router_command(router: RouterPlan, port: int, host: str, metrics_port: int) -> list[str]:
    """Command line of sglang-router, without workers: they are added over HTTP when they are up."""
    options = {
        "host": host,
        "port": port,
        "policy": router.policy,
        "prometheus-port": metrics_port,
        "prometheus-host": "127.0.0.1",
        "log-level": "warn",
        # On the defaults 32 requests took 60 s after a worker had died; with these, 0.3 s.
        "health-check-interval-secs": 2,
        "health-check-timeout-secs": 2,
        "health-failure-threshold": 2,
        "retry-max-backoff-ms": 500,
    }
    command = [sys.executable, *LAUNCH, "router"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return command
