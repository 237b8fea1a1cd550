"""The quickstart with numbers of our own, so that tuning it changes no test."""

from __future__ import annotations

PINNED = [
    "+experiment=quickstart",
    "num_steps=30",
    "seed=1234",
    "algo.group_size=8",
    "algo.prompts_per_rollout=16",
    "algo.groups_per_step=16",
    "algo.lr=0.001",
    "algo.lr_schedule=constant",
    "algo.lr_warmup_steps=0",
    "algo.min_lr=0",
    "algo.kl_coef=0",
    "rollout.max_prompt_tokens=16",
    "rollout.max_response_tokens=8",
    "rollout.temperature=1",
    "rollout.seeded=false",
    "trainer.max_tokens_per_gpu=4096",
    "eval.interval=10",
    "eval.samples_per_prompt=1",
    "eval.temperature=0",
    "weight_sync.verify=version",
    "checkpoint.interval=null",
    "model.alphabet='0123456789 '",
    "model.architecture.vocab_size=14",
    "model.architecture.max_position_embeddings=512",
    "data.shuffle=true",
    "reward.function=rlrun.agents.rewards:position_match",
]
