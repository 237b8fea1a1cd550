"""What server groups, frozen models and external servers may say together."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from rlrun.config.arguments.check import check_sglang_arguments, refusal
from rlrun.config.arguments.sglang import FOR_THE_POLICY
from rlrun.config.keys import all_keys
from rlrun.config.origin import show
from rlrun.config.partial import Unreadable
from rlrun.config.sections.rollout import SglangConfig
from rlrun.errors import Problem
from rlrun.plan.context import Context, local_path
from rlrun.plan.groups import GROUPS, POLICY, ROLLOUT, Group, external_policy, has_engines, rollout_gpus

EXTERNAL = f"{ROLLOUT}.external"
MODELS = "rollout.models"
SGLANG = "rollout.sglang"

WITH_IMAGES = ("qwen3_5", "qwen3_5_moe")
"""Families whose checkpoints have a vision encoder that SGLang can serve apart."""


def sglang_of(c: Context, group: Group) -> Any:
    """`rollout.sglang` as the engines of a group have it. Raises Unreadable when its own values cannot be used."""
    general = c.config.rollout.sglang
    if not group.sglang:
        return general
    values = {name: getattr(general, name) for name in SglangConfig.model_fields} | general.engine_arguments
    try:
        return SglangConfig.model_validate({**values, **group.sglang})
    except ValidationError:
        raise Unreadable(f"{group.key}.sglang") from None


def settings(c: Context, name: str) -> list[tuple[str, Any]]:
    """(key, value) of one setting of the engines: the general one when a group uses it, and those of groups that have
    their own."""
    found: dict[str, Any] = {}
    for group in c.groups:
        if group.has_engines:
            key = f"{group.key}.sglang.{name}" if name in group.sglang else f"{SGLANG}.{name}"
            found[key] = getattr(sglang_of(c, group), name)
    return list(found.items())


def override_names(c: Context) -> Iterator[Problem]:
    """Settings of one group that are not keys of `rollout.sglang` are arguments of SGLang, judged as there."""
    for group in c.groups:
        further = {name: value for name, value in group.sglang.items() if name not in SglangConfig.model_fields}
        if further:
            frozen = group.model != POLICY
            allow = [name for name in further if frozen and refusal("sglang", name) in FOR_THE_POLICY]
            yield from check_sglang_arguments(further, f"{group.key}.sglang", c.origins, allow)


def override_values(c: Context) -> Iterator[Problem]:
    for group in c.groups:
        for name, value in group.sglang.items():
            known = all_keys().get(f"{SGLANG}.{name}")
            if known is None:
                continue
            try:
                SglangConfig.model_validate({name: value})
            except ValidationError:
                key = f"{group.key}.sglang.{name}"
                summary = f"{key} is {show(value)}, it has to be {known.expected}"
                yield c.problem("override-not-allowed", summary, key, hint=f"set {key} to {known.expected}")


def placeholder_keys(c: Context) -> Iterator[Problem]:
    """A placeholder has no engines, so everything about engines does nothing in it."""
    for index, written in enumerate(c.config.placement.rollout.server_groups):
        if written.type != "placeholder":
            continue
        for name in ("model", "gpus_per_engine", "pp", "ep", "dp_attention", "sglang"):
            default = type(written).model_fields[name].default
            if getattr(written, name) != default:
                key = f"{GROUPS}.{index}.{name}"
                summary = f"{key} does nothing: a placeholder has no engines"
                yield c.problem("inactive-key", summary, key, f"{GROUPS}.{index}.type", hint=f"remove {key}")


def unused_sizes(c: Context) -> Iterator[Problem]:
    """Sizes and settings that every group replaces by its own."""
    groups = [group for group in c.groups if group.has_engines]
    if not groups or not c.config.placement.rollout.server_groups:
        return
    used = {key for g in groups for key in (g.size_key, g.pp_key, g.ep_key, g.dp_key)}
    general = [f"{ROLLOUT}.{name}" for name in ("gpus_per_engine", "pp", "ep", "dp_attention")]
    for key in general:
        if c.changed(key) and key not in used:
            default = show(all_keys()[key].default)
            summary = f"{key} does nothing: no server group leaves it to that"
            yield c.problem("inactive-key", summary, key, GROUPS, hint=f"set {key} to {default}")
    for name, model in c.config.rollout.models.items():
        key = f"{MODELS}.{name}.gpus_per_engine"
        if model.gpus_per_engine is not None and key not in used and any(g.model == name for g in groups):
            summary = f"{key} does nothing: each group of {name} has its own"
            yield c.problem("inactive-key", summary, key, GROUPS, hint=f"set {key} to null")
    for name in SglangConfig.model_fields:
        key = f"{SGLANG}.{name}"
        if c.changed(key) and all(name in group.sglang for group in groups):
            summary = f"{key} does nothing: each server group has its own"
            default = show(all_keys()[key].default)
            yield c.problem("inactive-key", summary, key, GROUPS, hint=f"set {key} to {default}")


def group_names(c: Context) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for index, written in enumerate(c.config.placement.rollout.server_groups):
        key = f"{GROUPS}.{index}.name"
        if written.name is not None and written.name in seen:
            summary = f"two server groups are called {written.name}"
            free = next(n for i in range(2, 99) if (n := f"{written.name}-{i}") not in seen)
            yield c.problem("group-name-taken", summary, seen[written.name], key, hint=f"set {key} to {free}")
        elif written.name is not None:
            seen[written.name] = key


def group_total(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    if not has_engines(p) or not p.rollout.server_groups:
        return
    total, gpus = rollout_gpus(p), p.rollout.gpus
    if total != gpus:
        parts = " + ".join(str(group.gpus) for group in p.rollout.server_groups)
        summary = f"the server groups have {parts} = {total} GPUs, and {ROLLOUT}.gpus is {gpus}"
        hint = f"set {ROLLOUT}.gpus to {total}"
        yield c.problem("server-groups-total", summary, f"{ROLLOUT}.gpus", GROUPS, hint=hint)


def disaggregated_sides(c: Context) -> Iterator[Problem]:
    """Prefill and decode engines of a model come together, and without regular ones."""
    if _unknown_models(c):
        return  # with the right name they may do
    for model in dict.fromkeys(group.model for group in c.groups):
        own = [group for group in c.groups if group.model == model and group.has_engines]
        types = {group.type: group for group in own}
        halves = [name for name in ("prefill", "decode") if name in types]
        if halves and "regular" in types:
            summary = (
                f"{model} has regular engines (group {types['regular'].name}) and {' and '.join(halves)} engines "
                f"(group {types[halves[0]].name}), and one router sends a request to one kind only"
            )
            keys = (f"{types['regular'].key}.type", f"{types[halves[0]].key}.type")
            hint = f"set {keys[1]} to regular, or {keys[0]} to {halves[0]}"
            yield c.problem("regular-mixed-with-pd", summary, *keys, hint=hint)
        elif len(halves) == 1:
            [half] = halves
            other = "decode" if half == "prefill" else "prefill"
            key = f"{types[half].key}.type"
            summary = f"{model} has {half} engines and no {other} engines, so no request could be finished"
            hint = f"set {key} to regular, or add a group of type {other}"
            yield c.problem("pd-one-sided", summary, key, hint=hint)
        if "encoder" in types and not {"regular", "prefill"} & set(types):
            key = f"{types['encoder'].key}.type"
            summary = f"{model} has an encoder and no regular or prefill engines that it would encode for"
            hint = f"set {key} to regular, or add a group of type regular"
            yield c.problem("encoder-alone", summary, key, hint=hint)


def need_gpus(c: Context) -> Iterator[Problem]:
    """What only a GPU can: handing a KV cache from engine to engine, and encoding images."""
    if c.config.placement.device != "cpu":
        return
    for group in c.groups:
        if group.type in ("prefill", "decode", "encoder"):
            key = f"{group.key}.type"
            summary = f"{group.type} engines hand over GPU memory, and this placement has none"
            hint = f"set {key} to regular"
            yield c.problem("group-type-needs-gpu", summary, key, "placement.device", hint=hint)


def encoder_has_images(c: Context) -> Iterator[Problem]:
    for group in c.groups:
        if group.type == "encoder" and group.model == POLICY and c.config.model.family not in WITH_IMAGES:
            key = f"{group.key}.type"
            summary = (
                f"the policy is of family {c.config.model.family}, which reads text only: there is nothing to encode"
            )
            hint = f"set {key} to regular"
            yield c.problem("encoder-without-images", summary, key, "model.family", hint=hint)


def policy_is_served(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    if (
        not has_engines(p)
        or external_policy(p)
        or _unknown_models(c)
        or any(g.model == POLICY and g.has_engines for g in c.groups)
    ):
        return
    summary = "no server group has engines of the policy, so nothing could be generated"
    key = next((f"{g.key}.type" for g in c.groups if not g.has_engines), f"{GROUPS}.0.model")
    hint = f"set {key} to {'regular' if key.endswith('type') else POLICY}, or add a group of model {POLICY}"
    yield c.problem("policy-without-engines", summary, key, hint=hint)


def _unknown_models(c: Context) -> bool:
    return any(group.has_engines and group.model not in (POLICY, *c.config.rollout.models) for group in c.groups)


def model_names(c: Context) -> Iterator[Problem]:
    """Names that groups and servers use and nobody has defined, and the other way round."""
    p, models = c.config.placement, c.config.rollout.models
    known = [POLICY, *models]
    uses = [(f"{GROUPS}.{i}.model", g.model) for i, g in enumerate(p.rollout.server_groups) if g.type != "placeholder"]
    uses += [(f"{EXTERNAL}.{i}.model", e.model) for i, e in enumerate(p.rollout.external)]
    for key, name in uses:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1) or [POLICY]
            others = ", ".join(models) or "none"
            summary = f"there is no model {name}: there are {POLICY}, which is trained, and in {MODELS} {others}"
            yield c.problem("unknown-served-model", summary, key, hint=f"set {key} to {close[0]}")
    if POLICY in models:
        key = f"{MODELS}.{POLICY}.path"
        summary = f"`{POLICY}` is the model that is trained, and no frozen model can be called that"
        hint = f"give {MODELS}.{POLICY} another name, e.g. reference"
        yield c.problem("reserved-model-name", summary, key, hint=hint)
    served = {name for _, name in uses}
    if not has_engines(p) or not served <= set(known):  # the wrong name may have been meant to be the unused one
        return
    for name in models:
        if name not in served and name != POLICY:
            key = f"{MODELS}.{name}.path"
            summary = f"nothing serves {name}: no server group and no external server has it"
            hint = f"remove {MODELS}.{name}, or add a group with model: {name} to {GROUPS}"
            yield c.problem("served-model-without-engines", summary, key, hint=hint)


def model_paths(c: Context) -> Iterator[Problem]:
    for name, model in c.config.rollout.models.items():
        key, folder = f"{MODELS}.{name}.path", local_path(model.path)
        if folder is None:
            continue
        trimmed = model.path.rstrip("/")
        if not _is_model(folder):
            is_id = trimmed != model.path and local_path(trimmed) is None
            hint = f"set {key} to {trimmed}" if is_id else f"set {key} to a folder with config.json, or to owner/name"
            summary = f"{model.path} is no folder with a config.json, and no id on the Hub"
            yield c.problem("served-model-not-found", summary, key, hint=hint)


def _is_model(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "config.json"))


def external_engines(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    seen: dict[tuple[str, int | None], str] = {}
    for index, engine in enumerate(p.rollout.external):
        key = f"{EXTERNAL}.{index}.url"
        address, wrong = _address(engine.url)
        if wrong:
            hint = f"set {key} to an address such as http://{address[0] or 'host'}:{address[1] or 30000}"
            yield c.problem("external-url", f"{engine.url} is no address of a server: {wrong}", key, hint=hint)
        elif address in seen:
            summary = f"{engine.url} is the same server as {c.value(seen[address])}"
            hint = f"remove {EXTERNAL}.{index}, or set {key} to another server"
            yield c.problem("external-twice", summary, seen[address], key, hint=hint)
        else:
            seen[address] = key
        halves = ("prefill", "decode")
        mixed = next((g for g in c.groups if g.model == engine.model and g.type in halves), None)
        if mixed is not None:
            summary = (
                f"{engine.model} has {mixed.type} engines (group {mixed.name}), and {engine.url} answers whole "
                "requests: one router sends a request to one kind only"
            )
            keys = (f"{EXTERNAL}.{index}.model", f"{mixed.key}.type")
            hint = f"remove {EXTERNAL}.{index}, or the server groups of {engine.model}"
            yield c.problem("external-mixed", summary, *keys, hint=hint)
    if external_policy(p) and p.mode == "colocated":
        summary = "external servers of the policy share no GPU with the trainer, so the run is not colocated"
        hint = "set placement.mode to disaggregated, and weight_sync.transport to distributed"
        yield c.problem("external-colocated", summary, "placement.mode", EXTERNAL, hint=hint)


def _address(url: str) -> tuple[tuple[str, int | None], str | None]:
    """Host and port of a URL, and what is wrong with it."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname or "", parts.port
    except ValueError as e:
        return ("", None), str(e).lower()
    wrong = None
    if parts.scheme not in ("http", "https"):
        wrong = "it has to begin with http:// or https://"
    elif not host or any(character.isspace() for character in url):
        wrong = "it has no host"
    elif port is None:
        wrong = "it has no port"
    elif parts.path not in ("", "/") or parts.query or parts.fragment:
        wrong = f"`{parts.path or parts.query or parts.fragment}` is no part of it"
    return (host.lower(), port), wrong


def external_keys(c: Context) -> Iterator[Problem]:
    """Keys about engines of ours that do nothing when there are none, because others serve the policy."""
    p = c.config.placement
    if not has_engines(p) or not external_policy(p) or c.groups:
        return
    for name in ("gpus", "gpus_per_engine", "pp", "ep", "dp_attention"):
        yield from _without_engines(c, f"{ROLLOUT}.{name}", EXTERNAL)
    for name in SglangConfig.model_fields:
        yield from _without_engines(c, f"{SGLANG}.{name}", EXTERNAL)


def _without_engines(c: Context, key: str, because: str) -> Iterator[Problem]:
    if c.changed(key):
        summary = f"{key} is about engines that the run starts, and it starts none"
        yield c.problem("inactive-key", summary, key, because, hint=f"set {key} to {show(all_keys()[key].default)}")


RULES = (
    override_names,
    override_values,
    placeholder_keys,
    unused_sizes,
    group_names,
    group_total,
    disaggregated_sides,
    need_gpus,
    encoder_has_images,
    policy_is_served,
    model_names,
    model_paths,
    external_engines,
    external_keys,
)
