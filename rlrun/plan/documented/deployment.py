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
        "A model is served by server groups of the run's own or by external servers, not by both: they would differ "
        "in settings, and only ours could be restarted."
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
    "served-models-not-runnable": "Frozen models beside the policy can be planned, and not yet served.",
    "external-engines-not-runnable": "Servers that run already can be planned with, and not yet attached.",
    "engine-nodes-not-runnable": "An engine that spans several nodes can be planned, and not yet started.",
    "engine-parallel-not-runnable": (
        "Pipeline, expert and data-parallel attention sizes of an engine can be planned, and not yet run: weights are"
        " sent to tensor-parallel ranks only."
    ),
}
