"""`+twin=cpu`: the same experiment, scaled until it runs on this machine's CPU with the real engines.

One pure function: a configuration as composed in, the keys that get another value out. What is learned and how stays
as it is (advantage, loss, KL, optimizer, async mode, weight transport, placement mode); what is scaled:

* model: a random one of the same family, conf/model/tiny_<family>.yaml. A model that is random already stays.
* data and reward: those of the quickstart, because the tiny model's alphabet cannot spell others; where given responses
  are learned, those of quickstart_sft. They stay where the model stays.
* trainer: at most two ranks. The largest of tp, pp, cp, ep and dp becomes 2 (the first of them when equal) and the
  others 1; experts are shared by data-parallel ranks, so ep 2 is dp 2 as well.
* engines: at most two, of one slot each, or one of each server group, which all become regular (prefill and decode
  hand over GPU memory). Servers of the policy that run elsewhere are replaced by engines of our own. All on one node,
  with as many slots as needed.
* frozen models: left out together with the reward that asked for them; served as they are for one that stays.
* batch: at most 4 samples a group and 4 groups an optimizer step, and as many optimizer steps a rollout as before.
* lengths, steps and intervals: small. Keys that only a GPU reads: their defaults.

A key set on the command line keeps its value, and the others are scaled around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.config.arguments.check import matches, usual
from rlrun.config.arguments.sglang import CUDA_ONLY
from rlrun.config.keys import all_keys
from rlrun.config.schema import RunConfig
from rlrun.config.sections.base import plain
from rlrun.config.sections.placement import ServerGroup

OPTIONS = ("cpu",)
ORIGIN = "twin cpu"

NUM_STEPS = 4
INTERVAL = 2
"""Of checkpoints and evaluations, in steps."""
MOST_SAMPLES, MOST_GROUPS = 4, 4
"""In a group, and in an optimizer step."""
MOST_PROMPTS = 64
"""Rows of the quickstart's training file, all of which one rollout may draw."""
MOST_EVAL_PROMPTS = 16
PROMPT_TOKENS, RESPONSE_TOKENS = 16, 8
MICRO_BATCH_TOKENS, MICRO_BATCH_SAMPLES = 2048, 4
KV_TOKENS = 65536
MOST_RANKS = MOST_ENGINES = 2

GPU_KEYS = (
    "placement.gpu",
    "placement.host_memory_gib",
    "placement.cpus_per_node",
    "placement.reserved",
    "placement.network_gb_per_s",
    "placement.trainer.etp",
    "trainer.optimizer_offload",
    "trainer.optimizer_dtype",
    "rollout.expected_response_tokens",
    "checkpoint.gather",
    "rollout.sglang.attention_backend",
    "rollout.sglang.mem_fraction_static",
    "rollout.sglang.cuda_graph",
    "model.dtype",
    "model.gdn_backend",
)
"""What only a GPU reads, or reads in its own way: back to the default."""

MODEL_KEYS = ("algo.reference_path", "algo.teacher_path", "algo.opd_coef", "critic.path")
"""What names a checkpoint of the full-size model: back to the default where the model is replaced."""


@dataclass
class _Scaled:
    """The changes so far; `fixed` says which keys the command line has set."""

    config: RunConfig
    fixed: Callable[[str], bool]
    changes: dict[str, Any] = field(default_factory=dict)

    def now(self, key: str) -> Any:
        if key in self.changes:
            return self.changes[key]
        node: Any = self.config
        for name in key.split("."):
            node = getattr(node, name)
        return node

    def put(self, key: str, value: Any) -> None:
        if not self.fixed(key) and plain(self.now(key)) != value:
            self.changes[key] = value

    def cap(self, key: str, most: int) -> None:
        """Lowers a number that is there."""
        now = self.now(key)
        if now is not None and now > most:
            self.put(key, most)


def cpu_twin(
    config: RunConfig, tiny: Mapping[str, Any], data: Mapping[str, Any], reward: str, fixed: Callable[[str], bool]
) -> dict[str, Any]:
    """Dotted key -> its value in the twin, for every key whose value differs.

    `tiny` is the tiny model of the family, a `model` section with its own `architecture`; `data` and `reward` are the
    quickstart's data section and reward function. `fixed` tells the keys that keep their values.
    """
    s = _Scaled(config, fixed)
    s.put("name", f"{config.name}_twin")
    for key in GPU_KEYS:
        s.put(key, all_keys()[key].default)
    _arguments(s)
    if config.model.init != "random":
        _section(s, "model", tiny)
        _task(s, data, reward)
        for key in MODEL_KEYS:
            s.put(key, all_keys()[key].default)
    _placement(s)
    _batch(s)
    _steps(s)
    return s.changes


def _arguments(s: _Scaled) -> None:
    """Further arguments of SGLang that do nothing, or cannot work, without a GPU."""
    for name in s.config.rollout.sglang.engine_arguments:
        if matches(name, CUDA_ONLY):
            s.put(f"rollout.sglang.{name}", usual("sglang", name))


def _section(s: _Scaled, section: str, values: Mapping[str, Any]) -> None:
    """Every key below `section`: as in `values`, or its default."""
    for key in all_keys().values():
        if not key.path.startswith(f"{section}.") or key.section is not None:
            continue
        node: Any = values
        for name in key.path.removeprefix(f"{section}.").split("."):
            node = node.get(name, _ABSENT) if isinstance(node, Mapping) else _ABSENT
        if node is not _ABSENT:
            s.put(key.path, node)
        elif not key.required:
            s.put(key.path, key.default)


_ABSENT = object()


def _task(s: _Scaled, data: Mapping[str, Any], reward: str) -> None:
    """The quickstart's task; evaluated when the experiment is."""
    _section(s, "data.train", data["train"])
    if s.config.data.eval is not None:
        _section(s, "data.eval", data["eval"])
        if s.config.eval.interval is not None and s.config.eval.max_prompts is None:
            s.put("eval.max_prompts", MOST_EVAL_PROMPTS)
    s.put("data.system_prompt", data.get("system_prompt"))
    if s.config.reward is not None:
        s.put("reward.function", reward)
        s.put("reward.arguments", {})
        _without_judges(s)
    s.put("rollout.stop", [])
    s.put("rollout.max_prompt_tokens", PROMPT_TOKENS)
    s.put("rollout.max_response_tokens", RESPONSE_TOKENS)
    s.cap("rollout.overlong_buffer_tokens", RESPONSE_TOKENS // 2)
    s.put("algo.loss_constant", None)


def _without_judges(s: _Scaled) -> None:
    """Nobody is left to ask frozen models: the reward is another one, and there is no hook of the user's."""
    hooks = (s.now("reward.postprocess"), s.now("dynamic_sampling.filter"), s.now("dynamic_sampling.sample_filter"))
    if "reward.function" in s.changes and not any(":" in (hook or "") for hook in hooks):
        s.put("rollout.models", {})


def _placement(s: _Scaled) -> None:
    p = s.config.placement
    s.put("placement.name", "cpu_twin")
    s.put("placement.device", "cpu")
    s.put("placement.num_nodes", 1)
    slots = (_trainer(s) if p.mode != "rollout_only" else 0, _engines(s) if p.mode != "train_only" else 0)
    s.put("placement.gpus_per_node", sum(slots) if p.mode == "disaggregated" else max(slots))


def _trainer(s: _Scaled) -> int:
    """Returns its slots."""
    t, trainer = s.config.placement.trainer, "placement.trainer"
    sizes = _two_ranks(t.tp, t.pp, t.ep, t.gpus, t.cp)
    for name in ("tp", "pp", "cp", "ep"):
        s.put(f"{trainer}.{name}", sizes[name])
    for name in ("first_stage_layers", "last_stage_layers"):
        s.put(f"{trainer}.{name}", None)
    replica = s.now(f"{trainer}.tp") * s.now(f"{trainer}.pp") * s.now(f"{trainer}.cp")
    s.put(f"{trainer}.gpus", replica * (sizes["dp"] if replica == 1 else 1))
    if s.now(f"{trainer}.tp") == 1:
        s.put("trainer.sequence_parallel", False)
    elif s.now("model.architecture.num_experts") is not None:
        s.put("trainer.sequence_parallel", True)  # Megatron trains no experts under tensor parallelism without it
    return int(s.now(f"{trainer}.gpus"))


def _engines(s: _Scaled) -> int:
    """Returns their slots."""
    r, rollout = s.config.placement.rollout, "placement.rollout"
    for name in ("gpus_per_engine", "pp", "ep", "dp_attention"):
        s.put(f"{rollout}.{name}", 1)
    known = s.now("rollout.models")
    s.put(f"{rollout}.external", [plain(server) for server in r.external if server.model in known])
    kept = [group for group in r.server_groups if group.model in ("policy", *known)]
    s.put(f"{rollout}.server_groups", [_group(group) for group in kept])
    s.put("rollout.sglang.max_total_tokens", KV_TOKENS)
    groups = s.now(f"{rollout}.server_groups")
    if groups:
        gpus = sum(group["gpus"] if isinstance(group, dict) else group.gpus for group in groups)
        s.put(f"{rollout}.gpus", gpus)
        return gpus
    engines = min(MOST_ENGINES, max(1, r.gpus // r.gpus_per_engine))
    s.put(f"{rollout}.gpus", engines * s.now(f"{rollout}.gpus_per_engine"))
    if engines == 1:
        s.put("rollout.router_policy", all_keys()["rollout.router_policy"].default)
    return int(s.now(f"{rollout}.gpus"))


def _group(group: ServerGroup) -> dict[str, Any]:
    """A server group with one engine of one slot. Prefill, decode and encoder engines hand over GPU memory, so they
    become regular ones."""
    own = {key: value for key, value in group.sglang.items() if f"rollout.sglang.{key}" not in GPU_KEYS}
    kind = group.type if group.type == "placeholder" else "regular"
    kept = {"type": kind, "gpus": 1, "name": group.name, "model": group.model, "sglang": own}
    if group.type != "placeholder":
        kept["gpus_per_engine"] = 1
    return {key: value for key, value in kept.items() if value not in (None, {})}


def _two_ranks(tp: int, pp: int, ep: int, gpus: int, cp: int) -> dict[str, int]:
    """The largest kind of parallelism with two ranks, the others with one."""
    kinds = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": gpus // (tp * pp * cp)}
    largest = max(kinds, key=lambda kind: kinds[kind])
    sizes = {kind: MOST_RANKS if kind == largest and kinds[kind] > 1 else 1 for kind in kinds}
    return sizes | {"dp": max(sizes["dp"], sizes["ep"])}


def _batch(s: _Scaled) -> None:
    a = s.config.algo
    s.cap("algo.group_size", MOST_SAMPLES)
    if a.groups_per_step is None:  # all that are kept
        s.cap("algo.prompts_per_rollout", MOST_PROMPTS)
    else:
        rollouts = min(MOST_PROMPTS, max(1, a.prompts_per_rollout // a.groups_per_step))  # optimizer steps of each
        s.put("algo.groups_per_step", min(a.groups_per_step, MOST_GROUPS, MOST_PROMPTS // rollouts))
        s.put("algo.prompts_per_rollout", rollouts * s.now("algo.groups_per_step"))
    s.cap("async_mode.max_in_flight_groups", s.now("algo.prompts_per_rollout"))
    s.cap("trainer.max_tokens_per_gpu", MICRO_BATCH_TOKENS)
    s.cap("trainer.micro_batch_size", MICRO_BATCH_SAMPLES)


def _steps(s: _Scaled) -> None:
    s.cap("num_steps", NUM_STEPS)
    steps = s.now("num_steps")
    if s.config.stop_after is not None and s.config.stop_after >= steps:
        s.put("stop_after", None)
    s.cap("critic.critic_only_steps", steps // 2)
    total = steps * (s.now("algo.prompts_per_rollout") // (s.now("algo.groups_per_step") or 10**9) or 1)
    s.cap("algo.lr_warmup_steps", total // 2)
    s.cap("checkpoint.interval", INTERVAL)
    _exports(s, steps)
    if s.config.eval.interval is not None:
        s.cap("eval.interval", INTERVAL)
        s.cap("eval.samples_per_prompt", MOST_SAMPLES)
        s.cap("eval.max_prompts", MOST_EVAL_PROMPTS)


def _exports(s: _Scaled, steps: int) -> None:
    """Along the way: before the last step, and what is kept for good is among what is saved."""
    if s.now("checkpoint.hf_interval") is not None and steps == 1:
        s.put("checkpoint.hf_interval", None)
        s.put("checkpoint.hf_keep", None)
    s.cap("checkpoint.hf_interval", min(INTERVAL, max(1, steps - 1)))
    if s.now("checkpoint.keep_every") is not None:
        saved, exported = s.now("checkpoint.interval"), s.now("checkpoint.hf_interval")
        s.put("checkpoint.keep_every", math.lcm(saved or 1, exported or 1) if saved or exported else None)
