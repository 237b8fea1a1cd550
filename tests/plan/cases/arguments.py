"""Arguments of the engines, below rollout.sglang and trainer.megatron."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from case import BIG, QUICK, Case

S, M = "rollout.sglang", "trainer.megatron"
EAGLE = [f"{S}.speculative_algorithm=EAGLE", f"{S}.speculative_draft_model_path=draft"]
STEPS = [f"{S}.speculative_num_steps=3", f"{S}.speculative_eagle_topk=1", f"{S}.speculative_num_draft_tokens=4"]
MOE = [BIG, "placement=cpu_1", "model=qwen3_30b_a3b"]

CASES = [
    Case("unknown-key", [QUICK, f"{S}.shedule_policy=lpm"]),
    Case("unknown-key", [QUICK, f"{M}.use_flash_attn=true"]),
    Case("wrong-type", [QUICK, f"{S}.page_size=big"], [f"{S}.page_size=null"]),
    Case("wrong-type", [QUICK, f"{S}.radix_cache_backend=1"], [f"{S}.radix_cache_backend='\"1\"'"]),
    Case("not-allowed", [QUICK, f"{S}.schedule_policy=best"], [f"{S}.schedule_policy=lpm"]),
    Case("not-allowed", [QUICK, f"{S}.gc_threshold=[]"], [f"{S}.gc_threshold=null"]),
    Case("owned-argument", [QUICK, f"{S}.random_seed=7"], [f"~{S}.random_seed", "seed=7"]),
    Case("owned-argument", [QUICK, f"{M}.lr=1e-4"], [f"~{M}.lr", "algo.lr=1e-4"]),
    Case("argument-refused", [QUICK, f"{S}.load_format=dummy"], [f"{S}.load_format=auto"]),
    Case("argument-refused", [QUICK, f"{M}.hidden_dropout=0.2"], [f"~{M}.hidden_dropout"]),
    Case("argument-not-settable", [QUICK, f"{M}.init_method=xavier"], [f"~{M}.init_method"]),
    Case("inactive-key", [QUICK, f"{S}.triton_attention_num_kv_splits=16"], [f"{S}.triton_attention_num_kv_splits=8"]),
    Case("inactive-key", [BIG, f"{S}.cuda_graph_max_bs_decode=32"], [f"{S}.cuda_graph_max_bs_decode=null"]),
    Case("inactive-key", [BIG, f"{S}.speculative_num_steps=3"], [f"{S}.speculative_num_steps=null"]),
    Case("inactive-key", [QUICK, f"{M}.moe_aux_loss_coeff=0.01"], [f"{M}.moe_aux_loss_coeff=0"]),
    Case("inactive-key", [QUICK, f"{M}.deallocate_pipeline_outputs=true"], [f"{M}.deallocate_pipeline_outputs=false"]),
    Case(
        "inactive-key",
        [BIG, "trainer.recompute=none", f"{M}.distribute_saved_activations=true"],
        [f"{M}.distribute_saved_activations=false"],
    ),
    Case(
        "inactive-key",
        [BIG, "trainer.distributed_optimizer=false", f"{M}.pad_buckets_for_high_nccl_busbw=true"],
        [f"{M}.pad_buckets_for_high_nccl_busbw=false"],
    ),
    Case(
        "argument-conflict",
        [BIG, f"{S}.enable_fp32_lm_head=true", f"{S}.rl_on_policy_target=fsdp"],
        [f"{S}.rl_on_policy_target=null"],
    ),
    Case(
        "argument-conflict", [QUICK, "rollout.seeded=true", f"{S}.chunked_prefill_size=512"], ["rollout.seeded=false"]
    ),
    Case(
        "argument-conflict",
        [BIG, "rollout.seeded=true", f"{S}.enable_deterministic_inference=false"],
        [f"{S}.enable_deterministic_inference=true"],
    ),
    Case(
        "argument-conflict",
        [BIG, *EAGLE, *STEPS[:2], f"{S}.speculative_num_draft_tokens=8"],
        [f"{S}.speculative_num_draft_tokens=4"],
    ),
    Case(
        "argument-conflict",
        [*MOE, f"{M}.moe_router_load_balancing_type=sinkhorn", f"{M}.moe_expert_capacity_factor=1.0"],
        [f"{M}.moe_expert_capacity_factor=null"],
    ),
    Case(
        "argument-conflict",
        [*MOE, f"{M}.moe_router_load_balancing_type=[aux_loss,seq_aux_loss]"],
        [f"{M}.moe_aux_loss_coeff=[0.001,0.001]"],
    ),
    Case(
        "not-allowed",
        [*MOE, f"{M}.moe_router_load_balancing_type=best"],
        [f"{M}.moe_router_load_balancing_type=aux_loss"],
    ),
    Case(
        "inactive-key",
        [*MOE, f"{M}.moe_router_load_balancing_type=none", f"{M}.moe_aux_loss_coeff=0.01"],
        [f"{M}.moe_aux_loss_coeff=0"],
    ),
    Case("inactive-key", [*MOE, f"{M}.moe_token_drop_policy=position"], [f"{M}.moe_token_drop_policy=probs"]),
    Case("inactive-key", [*MOE, f"{M}.moe_shared_expert_overlap=true"], [f"{M}.moe_shared_expert_overlap=false"]),
    Case("argument-incomplete", [BIG, *EAGLE], STEPS),
    Case(
        "argument-incomplete",
        [BIG, f"{S}.speculative_algorithm=EAGLE", *STEPS],
        [f"{S}.speculative_draft_model_path=draft"],
    ),
    Case("not-allowed", [BIG, f"{S}.speculative_algorithm=eagle"], [f"{S}.speculative_algorithm=null"]),
]
