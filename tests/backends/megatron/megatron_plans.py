"""Small RunPlans, built by hand: the smallest Qwen3 that still has every feature that can go wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlrun.algos.options import LossOptions
from rlrun.plan import types as t

SPEC = t.ModelSpec(
    family="qwen3",
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,  # not hidden_size / num_heads
    ffn_hidden_size=48,
    vocab_size=99,  # odd, so that tp 2 pads it
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    max_position_embeddings=256,
    tied_embeddings=True,
    num_parameters=0,
)
LOSS = LossOptions(
    kind="ppo_clip",
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=None,
    entropy_coef=0.0,
    kl_coef=0.1,
    kl_estimator="k3",
    kl_unbiased=False,
    importance=None,
    opsm_delta=None,
)
OPTIMIZER = t.OptimizerPlan(
    lr=1e-2,
    min_lr=1e-3,
    schedule="cosine",
    warmup_steps=2,
    total_steps=10,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.98,
    eps=1e-4,
    clip_grad=0.5,
)


def make_plan(
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    etp: int = 1,
    spec: t.ModelSpec | None = None,
    cp: int = 1,
    tied: bool = True,
    batching: str = "packed",
    recompute: str = "none",
    sequence_parallel: bool = False,
    distributed_optimizer: bool = True,
    uses_reference: bool = True,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 1234,
    gather: str = "gpu",
    num_layers: int = SPEC.num_layers,
    stage_layers: tuple[int, ...] = (),
    sync: t.SyncPlan | None = None,
    critic: bool = False,
    critic_path: str | None = None,
    value_clip: float | None = 0.2,
    **optimizer: Any,
) -> t.RunPlan:
    slots = tp * pp * cp * dp
    return t.RunPlan(
        name="test",
        experiment=None,
        seed=seed,
        num_steps=1,
        stop_after=None,
        output_dir="/nonexistent",
        config_hash="0" * 12,
        device=device,
        num_nodes=1,
        gpus_per_node=slots,
        placement_mode="colocated",
        slots=tuple(t.Slot(i, 0, i) for i in range(slots)),
        max_staleness=0,
        model=t.ModelPlan(
            "tiny", spec or replace(SPEC, tied_embeddings=tied, num_layers=num_layers), "pretrained", None, None, dtype
        ),
        train=t.TrainPlan(
            slots=tuple(range(slots)),
            tp=tp,
            pp=pp,
            cp=cp,
            dp=dp,
            ep=ep,
            etp=etp,
            backend="nccl" if device == "cuda" else "gloo",
            threads=1,
            batching=batching,
            max_tokens_per_gpu=64 if batching == "packed" else None,
            micro_batch_size=2 if batching == "padded" else None,
            recompute=recompute,
            sequence_parallel=sequence_parallel,
            distributed_optimizer=distributed_optimizer,
            stage_layers=stage_layers,
        ),
        algo=t.AlgoPlan(
            name="grpo",
            advantage="grpo",
            normalize_by_std=True,
            loss_aggregation="token_mean",
            loss=replace(LOSS, kl_coef=0.1 if uses_reference else 0.0),
            uses_reference=uses_reference,
            optimizer=replace(OPTIMIZER, **optimizer),
        ),
        batch=t.BatchPlan(4, 2, 8, 4, 8, 1, 8 // dp),
        engines=(),
        router=None,
        rollout=t.RolloutPlan(64, 64, 1.0, (), False, 60.0, 1, 8),
        data=t.DataPlan(t.DatasetPlan("/nonexistent", "prompt", None, 0), None, False, None),
        reward=t.RewardPlan("a:b", {}, 1.0),
        sync=sync or t.SyncPlan("tensor", "value", 1 << 20, "version", 0),
        eval=None,
        checkpoint=t.CheckpointPlan(interval=None, keep=1, hf_at_end=False, digest=False, gather=gather),
        tracking=None,
        timeouts=t.TimeoutsPlan(60.0, 60.0, 60.0, 60.0, 60.0),
        changed=(),
        critic=t.CriticPlan(critic_path, value_clip, 0, replace(OPTIMIZER, lr=2e-2, clip_grad=1.5)) if critic else None,
        resolved_config={},
    )


def world(plan: t.RunPlan) -> int:
    """Trainer ranks of a plan."""
    return len(plan.train.slots)
