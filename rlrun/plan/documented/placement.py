"""Codes: placement."""

from __future__ import annotations

CODES: dict[str, str] = {
    "too-many-gpus": (
        "The run needs more GPUs (slots on cpu) than its nodes have free of placement.reserved. Colocated runs need "
        "the larger of placement.trainer.gpus and placement.rollout.gpus, disaggregated runs their sum. Without this "
        "check Ray would wait for ever."
    ),
    "too-few-samples": (
        "A data-parallel replica of the trainer, or an engine, would have no sample to work on in any step, and its "
        "GPUs would be held for nothing. Raise the batch, or ask for fewer GPUs."
    ),
    "trainer-indivisible": (
        "A replica of the model takes tp x pp x cp GPUs, and the trainer's GPUs hold a whole number of "
        "replicas, whose number is the data-parallel size."
    ),
    "tp-indivisible": (
        "Tensor parallelism gives every rank the same number of attention heads, key/value heads, MLP columns "
        "and vocabulary rows; placement.trainer.tp has to divide all four."
    ),
    "engine-tp-indivisible": (
        "An engine with several GPUs is tensor-parallel over all of them, so "
        "placement.rollout.gpus_per_engine has to divide attention heads and MLP columns, and to divide the "
        "key/value heads or be a multiple of them."
    ),
    "ep-indivisible": (
        "Expert parallelism gives every rank the same number of experts: placement.trainer.ep has to divide the "
        "experts, placement.trainer.etp the columns of one, and their product the trainer's GPUs of one pipeline "
        "stage."
    ),
    "layers-indivisible": (
        "Pipeline stages have the same number of layers, but for the first and the last one where "
        "placement.trainer.first_stage_layers and last_stage_layers say otherwise; together they have all layers."
    ),
    "stage-without-indexer": (
        "With cross-layer index sharing (GLM-5.2) most layers use the selection of keys that an earlier layer made. "
        "A pipeline stage has to start with a layer that has an indexer of its own, because the selection does not "
        "travel between stages. placement.trainer.first_stage_layers and last_stage_layers move the borders."
    ),
    "cp-unsupported": (
        "Context parallelism gives each rank a part of every sample. A gated delta net (Qwen3.5) passes its state "
        "from token to token and would need the parts one after the other, so placement.trainer.cp has to be 1; also "
        "where the teacher has such layers. Long samples also fit with trainer.recompute=full or a larger tp."
    ),
    "ep-not-runnable": (
        "Expert and expert-tensor parallelism can be planned, and this version runs with placement.trainer.ep and etp "
        "of 1 only. With ep 1 Megatron-core does not sum the gradients of experts over tensor-parallel ranks, so such "
        "a model does not run with tp above 1 either."
    ),
    "engines-indivisible": (
        "Every engine has placement.rollout.gpus_per_engine GPUs, and together they have "
        "placement.rollout.gpus: the first has to divide the second."
    ),
    "engine-crosses-nodes": (
        "The GPUs of one engine have to be on one node, or be all the GPUs of each of its nodes. Engines are laid out "
        "from the first GPU after the trainer's (from GPU 0 when colocated), without gaps, group by group."
    ),
    "transport-impossible": (
        "Weights reach the engines by tensor transport, which hands over memory (CUDA IPC on cuda) and therefore needs "
        "colocated placement and, on every node that an engine has GPUs on, a trainer rank; or by distributed "
        "transport, a process group in which NCCL allows each GPU once and which therefore needs disaggregated "
        "placement on cuda. disk and delta transport need neither, only a folder that all nodes share."
    ),
    "colocated-nodes-not-runnable": (
        "A colocated run over several nodes can be planned, but in this version the whole weights are gathered on "
        "trainer rank 0 only, and CUDA IPC cannot hand them to an engine on another node. Disk and delta transport can."
    ),
    "attention-backend": (
        "The attention backend does not run on this device (only torch_native runs on a CPU), or cannot give "
        "results that are independent of the batch, which seeded sampling needs. auto picks one that works."
    ),
    "engine-memory-unset": (
        "A colocated engine keeps its share of the GPU while the trainer works, and SGLang's own choice leaves "
        "the trainer almost nothing: the run would end out of memory. rollout.sglang.mem_fraction_static is the "
        "engine's share of the whole GPU; shipped placements set it."
    ),
    "kv-cache-unset": (
        "On a CPU the KV cache has no natural limit, and SGLang would allocate 16 GB. "
        "rollout.sglang.max_total_tokens gives its size in tokens; shipped cpu placements set it."
    ),
    "sequence-parallel-needed": (
        "Megatron-core trains experts on tensor-parallel ranks only when the ranks share the sequence between the "
        "layers. It would refuse in the first step."
    ),
    "token-cap-too-small": (
        "trainer.max_tokens_per_gpu (times cp) is the size of a packed micro-batch. A sample that is longer goes "
        "alone; when a prompt already is, nothing is packed any more. Memory for the longest sample is needed in any "
        "case, so a cap that holds it costs nothing."
    ),
    "kv-cache-too-small": (
        "rollout.sglang.max_total_tokens has to hold at least one sample of the longest prompt and response, "
        "or such a request would never be scheduled. Several times that much lets samples be decoded "
        "together."
    ),
}
