"""Which weights have to arrive in one transfer, and which must not: what SGLang's loaders ask for.

SGLang loads each transfer by a call of its own, and some loaders keep what they know for one call only. Both kinds of
mistake are silent: the call succeeds, and weights stay old.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LATENT_PAIR = re.compile(r"(.*\.)(?:q_a_proj|kv_a_proj_with_mqa)\.(.*)")
"""Latent attention: the two are one matrix to SGLang, which sets it when a call has brought both."""

PACKED_EXPERTS = re.compile(r".*\.mlp\.experts\.(?:gate_up_proj|down_proj)(?:\.weight)?")
"""All experts of a layer in one tensor. The loader of Qwen3.5 reads every later expert of the call as packed."""

EACH_EXPERT = re.compile(r".*\.mlp\.experts\.\d+\..*")


def together(name: str) -> str | None:
    """The group of a weight, whose members have to arrive in one transfer; None when it may travel alone."""
    match = LATENT_PAIR.fullmatch(name)
    return f"{match[1]}qkv_a.{match[2]}" if match else None


def apart(name: str) -> str | None:
    """The kind of a weight: weights of two kinds must not share a transfer. None goes with every kind."""
    if PACKED_EXPERTS.fullmatch(name):
        return "packed experts"
    return "single experts" if EACH_EXPERT.fullmatch(name) else None


def group_sizes(names: Iterable[str]) -> dict[str, int]:
    """How many of `names` each group has."""
    sizes: dict[str, int] = {}
    for name in names:
        group = together(name)
        if group is not None:
            sizes[group] = sizes.get(group, 0) + 1
    return sizes
