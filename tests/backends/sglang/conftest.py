from __future__ import annotations

from collections.abc import Callable

import pytest

from rlrun.data.tiny_model import make_random_model
from rlrun.plan.types import EnginePlan, ModelPlan, ModelSpec, RolloutPlan, RouterPlan, RunPlan, Slot, SyncPlan

ALPHABET = "0123456789+-*=() abc"


TINY = ModelSpec("qwen3", 64, 2, 4, 2, 16, 128, 32, 1e-6, 1e4, 512, False, 0)


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., RunPlan]:
    """A plan with everything that the SGLang backend reads; the rest is None."""

    def make(
        engines: int = 1,
        *,
        device: str = "cpu",
        backend: str = "value",
        stop: tuple[str, ...] = (),
        rollout: dict | None = None,
        gpus_per_node: int = 8,
        spec: ModelSpec = TINY,
        **engine,
    ) -> RunPlan:
        values = {
            "tp": 1,
            "port": None,
            "dist_port": None,
            "threads": 1,
            "attention_backend": "torch_native",
            "mem_fraction_static": None,
            "max_total_tokens": 16384,
            "max_running_requests": 64,
            "cuda_graph": False,
            "log_level": "info",
            "seeded": True,
            "context_length": 256,
        }
        values.update(engine)
        tp = values["tp"]
        engine_plans = tuple(
            EnginePlan(index=i, slots=tuple(range(i * tp, (i + 1) * tp)), **values) for i in range(engines)
        )
        slots = tuple(Slot(i, i // gpus_per_node, i % gpus_per_node) for i in range(max(engines * tp, 1)))
        unused = dict.fromkeys(
            (
                "experiment",
                "stop_after",
                "algo",
                "batch",
                "data",
                "reward",
                "eval",
                "checkpoint",
                "tracking",
                "timeouts",
            )
        )
        rollout_values = {
            "max_prompt_tokens": 64,
            "max_response_tokens": 64,
            "temperature": 1.0,
            "stop": stop,
            "seeded": values["seeded"],
            "request_timeout_s": 60.0,
            "max_retries": 3,
            "max_concurrent_groups": 64,
        }
        return RunPlan(
            name="test",
            seed=1234,
            num_steps=1,
            output_dir="/tmp",
            config_hash="0" * 12,
            device=device,
            num_nodes=1 + slots[-1].node,
            gpus_per_node=gpus_per_node,
            placement_mode="colocated",
            slots=slots,
            max_staleness=0,
            model=ModelPlan("tiny", spec, "random", None, ALPHABET, "float32" if device == "cpu" else "bfloat16"),
            train=_TrainSlots((0,)),
            engines=engine_plans,
            router=RouterPlan("round_robin", None) if engines > 1 else None,
            rollout=RolloutPlan(**{**rollout_values, **(rollout or {})}),
            sync=SyncPlan("tensor", backend, 1 << 29, "version", 0),
            changed=(),
            resolved_config={},
            **unused,
        )

    return make


class _TrainSlots:
    """The one field of TrainPlan that matters here."""

    def __init__(self, slots: tuple[int, ...]):
        self.slots = slots


@pytest.fixture(scope="session")
def make_model() -> Callable[[str, RunPlan], str]:
    """Writes the plan's model with larger weights: a new model's next-token distribution is almost uniform, and would
    hide mistakes."""
    from safetensors.torch import load_file, save_file

    def make(directory: str, plan: RunPlan) -> str:
        make_random_model(directory, plan.model.spec, ALPHABET, seed=1, dtype=plan.model.dtype)
        path = f"{directory}/model.safetensors"
        scaled = {name: tensor * (6 if tensor.dim() == 2 else 1) for name, tensor in load_file(path).items()}
        save_file(scaled, path, metadata={"format": "pt"})
        return directory

    return make
