"""Codes: server groups, frozen models, external engines, nodes."""

from __future__ import annotations

CODES: dict[str, str] = {
    "server-groups-total": (
        "placement.rollout.gpus is the number of the rollout's GPUs. When placement.rollout.server_groups says which "
        "engines they form, the groups' gpus have to add up to it; the number is never adjusted silently."
    ),
    "group-name-taken": (
        "The name of a server group stands for it in the plan, in messages and in logs, so two groups cannot have the"
        " same. A group without a name gets one of its own."
    ),
    "regular-mixed-with-pd": (
        "A model is served either by regular engines, or by prefill and decode engines together: its router sends "
        "every request the same way, and the others would never get one."
    ),
    "pd-one-sided": (
        "Prefill engines read prompts and hand the cache to decode engines, which write the responses. With only one "
        "of the two no request is ever finished."
    ),
    "encoder-alone": (
        "An encoder turns images into what the language model reads, and serves the regular or prefill engines of its"
        " model; without those it has nobody to encode for."
    ),
    "group-type-needs-gpu": (
        "Prefill engines hand their cache to decode engines, and encoders their images, from GPU memory to GPU memory. "
        "On a CPU every engine is a regular one."
    ),
    "encoder-without-images": (
        "An encoder group serves the vision part of a model. The policy's family has none, so SGLang would not start "
        "it."
    ),
    "policy-without-engines": (
        "The model that is trained is called policy, and rollouts come from its engines: at least one server group "
        "other than a placeholder, or an external server, has to have it."
    ),
    "unknown-served-model": (
        "A server group or external server names its model: policy, the model that is trained, or one of "
        "rollout.models. Requests for a name that is neither would reach no engine."
    ),
    "reserved-model-name": (
        "policy is the model that is trained, the only one whose engines get new weights. A frozen model in "
        "rollout.models needs another name."
    ),
    "served-model-without-engines": (
        "A frozen model in rollout.models is served by a group of placement.rollout.server_groups, or by a server in "
        "placement.rollout.external. Without either a request for it would fail in the first step."
    ),
    "served-model-not-found": (
        "The path of a frozen model is a local folder with a config.json, or an id owner/name on the Hub, without a "
        "slash at its end."
    ),
    "override-not-allowed": (
        "The sglang mapping of a server group holds keys of rollout.sglang, and each value has to be what that key "
        "accepts."
    ),
    "external-url": "An external engine is the address of an SGLang server: http://host:port or https://host:port.",
    "external-twice": "The same external server is listed twice; it would get every request and every weight twice.",
    "external-mixed": (
        "An external server answers whole requests, and prefill and decode engines halves of them; the router of a "
        "model sends every request the same way. Beside regular engines of the run's own an external server is one "
        "more."
    ),
    "external-colocated": (
        "Trainer and engines of a colocated run share GPUs and take turns. Servers that somebody else started have "
        "GPUs of their own, so the placement is disaggregated."
    ),
    "engine-pp-indivisible": (
        "An engine's GPUs form pp pipeline stages of tp GPUs each: pp has to divide its GPUs, and the model needs a "
        "layer for each stage."
    ),
    "engine-dp-indivisible": (
        "With data-parallel attention each of dp_attention ranks has tp / dp_attention GPUs for its share of the "
        "requests, so dp_attention has to divide the tensor-parallel size."
    ),
    "engine-ep-indivisible": (
        "Expert parallelism spreads the experts over ep of the engine's tensor-parallel ranks: ep has to divide that "
        "size and the number of experts."
    ),
    "reserved-outside": "placement.reserved names GPUs of the run's nodes, which are numbered from 0.",
    "reserved-twice": "A GPU of placement.reserved is listed once, with one thing that uses it.",
    "too-few-cpus": (
        "Every trainer rank, every engine on each of its nodes and every router keeps a CPU core busy. With fewer "
        "cores than processes a run is slow, or its Ray bundles are never granted."
    ),
    "nothing-to-evaluate": (
        "A rollout_only placement has no trainer: the run evaluates the model and ends. It therefore needs "
        "eval.interval and data.eval."
    ),
    "mode-not-runnable": (
        "train_only placements run with algo.loss=sft; with another loss they, and rollout_only placements, can be "
        "planned, and not yet run."
    ),
    "server-groups-not-runnable": (
        "Regular groups and placeholders run. Prefill, decode and encoder groups can be planned, and not yet run."
    ),
    "served-model-unused": (
        "A frozen model is served for the user's functions: a reward function or hook with a parameter `models` is "
        "given them by name. When no function has one, the model would hold GPUs for nothing."
    ),
    "served-context": (
        "rollout.models.NAME.context_length is at most what the model's config.json allows. On a CPU the family "
        "glm_moe_dsa is served without its selection of keys, so its context is at most index_topk."
    ),
    "external-family": (
        "SGLang keeps a float32 copy of the routers of GLM-4.5 to 4.7 and does not renew it when weights arrive. "
        "Servers that rlrun starts do; in an external one every rollout would be routed by the first weights."
    ),
    "external-unreachable": (
        "A server in placement.rollout.external has to answer /health, /server_info and /model_info within "
        "timeouts.start_s, without a key."
    ),
    "external-mismatch": (
        "An external server of the policy has to be what the run would have started: the SGLang version, the model, "
        "its dtype, room for the longest sample, plain tensor parallelism, and deterministic inference where the "
        "rollout is seeded. Addresses, seeds, memory and request limits may differ."
    ),
    "engine-nodes-not-runnable": "An engine that spans several nodes can be planned, and not yet started.",
    "engine-parallel-not-runnable": (
        "Pipeline, expert and data-parallel attention sizes of an engine can be planned, and not yet run: weights are"
        " sent to tensor-parallel ranks only."
    ),
}
