"""What only this machine can tell, looked at before Ray starts: are the engines installed, are the GPUs there, can the
model be had. Problems are gathered and reported together, exit code 2."""

from __future__ import annotations

import glob
import importlib.metadata
import os
from dataclasses import replace
from pathlib import Path

from rlrun.errors import Problem, RlrunError
from rlrun.plan.limits import limits
from rlrun.plan.served import longest_context
from rlrun.plan.types import RunPlan, ServedModelPlan

NEEDED = ("ray", "torch", "megatron-core", "transformers")


def versions() -> dict[str, str]:
    """Installed versions of what decides results."""
    found = {}
    for name in ("rlrun", "torch", "megatron-core", "sglang", "sglang-router", "transformers", "ray", "mlflow"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _installed(package: str) -> bool:
    """By the package's own record: a folder named ray below the current one would pass for a module."""
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check_machine(plan: RunPlan) -> None:
    """Raises RlrunError with everything this machine, or this version, lacks for the plan."""
    problems = [Problem(limit.code, limit.what, hint=limit.hint) for limit in limits(plan)]
    needed = list(NEEDED)
    if plan.sync is not None:
        needed.append("sglang")
    if plan.tracking is not None:
        needed.append("mlflow")
    if plan.router is not None or any(model.router is not None for model in plan.deployment.models):
        needed.append("sglang-router")
    missing = [package for package in needed if not _installed(package)]
    if missing:
        problems.append(
            Problem(
                "engines-not-installed",
                f"running needs {', '.join(missing)}; this environment can only plan",
                hint="on a CPU `make setup` in a checkout; on a CUDA machine `pip install 'rlrun[gpu]'`",
            )
        )
    if plan.device == "cuda" and "RAY_ADDRESS" not in os.environ:
        taken = sum(len(entry.gpus) for entry in plan.deployment.reserved)
        need, have = len(plan.slots), max(0, count_gpus() - taken)
        if need > have:
            problems.append(
                Problem(
                    "too-few-gpus",
                    f"the plan needs {need} GPUs, this machine shows {have}{f' beside {taken} reserved' * bool(taken)} "
                    "and RAY_ADDRESS names no cluster",
                    hint="set RAY_ADDRESS to a Ray cluster, or choose a smaller placement (placement=cpu_1 needs none)",
                )
            )
    if problems:
        raise RlrunError(problems)


def count_gpus() -> int:
    """GPUs the driver may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(glob.glob("/proc/driver/nvidia/gpus/*")) or len(glob.glob("/dev/nvidia[0-9]*"))
    if visible is None:
        return present
    return min(present, len([v for v in visible.split(",") if v.strip() not in ("", "-1")]))


def stage_model(plan: RunPlan, run_dir: str) -> str:
    """Local folder with config.json, weights and tokenizer: made (init=random), found, or fetched from the Hub.

    A folder made for a run is kept, so that a resumed run has the same reference model.
    """
    if plan.model.init == "random":
        from rlrun.data.tiny_model import make_random_model

        assert plan.model.alphabet is not None
        directory = os.path.join(run_dir, "model")
        if not os.path.exists(os.path.join(directory, "config.json")):
            make_random_model(directory, plan.model.spec, plan.model.alphabet, plan.seed, plan.model.dtype)
        return directory
    assert plan.model.path is not None
    if os.path.isdir(os.path.expanduser(plan.model.path)):
        return os.path.abspath(os.path.expanduser(plan.model.path))
    directory = _fetch(plan.model.path, "model.path")
    _check_fetched(plan, directory)
    return directory


def stage_served(plan: RunPlan) -> dict[str, str]:
    """Local folder of each frozen model that engines of ours serve, by name. Raises RlrunError with every model that
    cannot be had."""
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for model in plan.deployment.models:
        if not model.engines:
            continue
        try:
            found[model.name] = _folder_of(model, plan.device)
        except RlrunError as e:
            problems += e.problems
    if problems:
        raise RlrunError(problems)
    return found


def _folder_of(model: ServedModelPlan, device: str) -> str:
    if os.path.isdir(model.path):  # the plan has looked into it
        return model.path
    key = f"rollout.models.{model.name}"
    folder = _fetch(model.path, f"{key}.path")
    most = longest_context(Path(folder), device)
    too_long = most is not None and (model.context_length or 0) > most.tokens
    if most is not None and (too_long or (most.has_to_be_written and model.context_length is None)):
        length = model.context_length or "its own"
        summary = f"{key}.context_length is {length}, which {model.path} does not allow: {most.why}"
        raise RlrunError(Problem("served-context", summary, hint=f"set {key}.context_length to {most.tokens}"))
    return folder


def _fetch(hub_id: str, key: str) -> str:
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(hub_id, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"])
    except Exception as e:
        raise RlrunError(
            Problem(
                "model-not-found",
                f"{hub_id} is neither a folder nor can it be fetched from the Hub ({type(e).__name__})",
                hint=f"set {key} to a local folder with config.json and *.safetensors",
            )
        ) from e


def _check_fetched(plan: RunPlan, directory: str) -> None:
    """The plan was made from expected values; now the real config.json is here."""
    from rlrun.plan.model_spec import spec_from_directory

    real = spec_from_directory(directory, plan.model.spec.family)
    if real != replace(plan.model.spec, num_parameters=real.num_parameters):
        raise RlrunError(
            Problem(
                "architecture-mismatch",
                f"config.json of {plan.model.path} says {real}, the plan was made for {plan.model.spec}",
                hint="set model.path to the local folder and plan again: it lists each differing field",
            )
        )
