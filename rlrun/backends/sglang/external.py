"""SGLang servers that somebody else has started: what they say of themselves, and what of it is not as the plan has it.

A server that gets the policy's weights has to be what the run would have started itself; all differences are found
together. What may differ: its address, seed, memory, request limits, attention backend, and where its first weights
came from.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rlrun.backends.sglang.server import http_json, http_status
from rlrun.errors import RlrunError
from rlrun.families import FAMILIES
from rlrun.plan.decide.rollout import CONTEXT_MARGIN
from rlrun.plan.model_spec import spec_from_directory
from rlrun.plan.served import read_config
from rlrun.plan.types import ModelSpec, RunPlan

POLL_S = 0.5
INFO_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Found:
    """What a server answers: its arguments and sizes (/server_info), and its model (/model_info)."""

    server: Mapping[str, Any]
    model: Mapping[str, Any]

    @property
    def tp(self) -> int:
        return int(self.server.get("tp_size", 1))


class Unreachable(Exception):
    """No answer in time, or one that is not SGLang's."""


def look_at(url: str, deadline_s: float) -> Found:
    """Waits until the server is healthy and asks what it is. Raises Unreachable."""
    end = time.monotonic() + deadline_s
    while (status := http_status(f"{url}/health")) != 200:
        if status in (401, 403):
            raise Unreachable(f"it asks for a key (HTTP {status}), and rlrun has none to send")
        if time.monotonic() > end:
            answer = "nothing answers" if status is None else f"/health answers with HTTP {status}"
            raise Unreachable(f"{answer} within timeouts.start_s = {deadline_s:g} s")
        time.sleep(POLL_S)
    try:
        found = Found(*(http_json(f"{url}/{name}", timeout_s=INFO_TIMEOUT_S) for name in ("server_info", "model_info")))
    except (OSError, ValueError) as e:
        raise Unreachable(f"it is healthy, and does not say what it is: {e}") from e
    if not all(isinstance(part, dict) for part in (found.server, found.model)) or "version" not in found.server:
        raise Unreachable("it is healthy, and no SGLang server: /server_info has no version")
    return found


def differences(plan: RunPlan, found: Found, model_dir: str) -> list[str]:
    """Everything about a server of the policy that the plan has otherwise, in words; empty when it can be used.
    `model_dir` is the policy's checkpoint here."""
    return [
        *_release(found),
        *_model(plan.model.spec, found),
        *_dtype(plan, found, model_dir),
        *_lengths(plan, found),
        *_parallel(found),
        *_answers(plan, found),
    ]


def _release(found: Found) -> Iterator[str]:
    ours, theirs = importlib.metadata.version("sglang"), found.server["version"]
    if theirs != ours:
        yield f"SGLang {theirs}, not {ours}"


def _model(spec: ModelSpec, found: Found) -> Iterator[str]:
    """Its kind, and, where its folder can be seen from here, every size."""
    kinds, kind = FAMILIES[spec.family].model_types, found.model.get("model_type")
    if kind not in kinds:
        yield f"a model of type {kind}, not {' or '.join(kinds)}"
        return
    folder = str(found.model.get("model_path", ""))
    if not os.path.isfile(os.path.join(folder, "config.json")):
        return
    try:
        theirs = spec_from_directory(folder, spec.family)
    except RlrunError as e:
        yield from (problem.summary for problem in e.problems)
        return
    for field in fields(ModelSpec):
        a, b = getattr(theirs, field.name), getattr(spec, field.name)
        # Counted from the others, and how far the positions were trained: it bounds the context, which is compared.
        if a != b and field.name not in ("num_parameters", "max_position_embeddings"):
            yield f"{field.name} {a}, not {b}"


def _dtype(plan: RunPlan, found: Found, model_dir: str) -> Iterator[str]:
    written = str(found.server.get("dtype", "auto"))
    wanted, theirs = plan.model.dtype, {"half": "float16", "float": "float32"}.get(written, written)
    if written == "auto":  # SGLang's rule: that of config.json, and float16 for float32
        config = read_config(Path(model_dir))
        own = str(config.get("dtype") or config.get("torch_dtype") or "float32")
        theirs = "float16" if own == "float32" else own
    if theirs != wanted:
        yield f"dtype {theirs}{' (auto)' * (written == 'auto')}, not {wanted} (--dtype {wanted})"
    if found.server.get("quantization"):
        yield f"quantized by {found.server['quantization']}, while the weights it would be sent are {wanted}"


def _lengths(plan: RunPlan, found: Found) -> Iterator[str]:
    longest = plan.rollout.max_prompt_tokens + plan.rollout.max_response_tokens
    need = longest + CONTEXT_MARGIN
    context = found.server.get("context_length") or _own_context(found) or plan.model.spec.max_position_embeddings
    if context < need:
        yield f"a context of {context} tokens, less than the {need} of the longest sample (--context-length {need})"
    tokens = found.server.get("max_total_num_tokens")
    if isinstance(tokens, int) and tokens < need:
        yield f"a KV cache of {tokens} tokens, less than the {need} of the longest sample"


def _own_context(found: Found) -> int | None:
    most = read_config(Path(str(found.model.get("model_path", "")))).get("max_position_embeddings")
    return most if isinstance(most, int) else None


def _parallel(found: Found) -> Iterator[str]:
    """Weights are sent to tensor-parallel ranks."""
    for name in ("pp_size", "dp_size"):
        if found.server.get(name, 1) != 1:
            yield f"{name} {found.server[name]}: weights are sent to tensor-parallel ranks only"
    mode = found.server.get("disaggregation_mode", "null")
    if mode not in (None, "null"):
        yield f"a {mode} server, which answers no whole requests"


def _answers(plan: RunPlan, found: Found) -> Iterator[str]:
    """What would make its samples others than the trainer takes them for."""
    if plan.rollout.seeded and not found.server.get("enable_deterministic_inference"):
        yield "not deterministic, which rollout.seeded needs (--enable-deterministic-inference)"
    if not found.model.get("is_generation", True):
        yield "an embedding server, which generates nothing"
    for name in ("skip_tokenizer_init", "allow_auto_truncate"):
        if found.server.get(name):
            yield f"{name} is on"
    if found.server.get("preferred_sampling_params"):
        yield f"preferred_sampling_params {found.server['preferred_sampling_params']}, which change every sample"
