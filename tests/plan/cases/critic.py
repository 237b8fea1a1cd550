"""The critic of PPO: what is wrong with it, and the change that cures it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from case import BIG, QUICK, Case

PPO = "+experiment=qwen3_ppo"
QUICK_PPO = [QUICK, "algo=ppo"]
FOUND = "critic.path=./critic"


def critic(weights: bool = True, **changes):
    """Writes ./critic with a config.json of the tiny model's architecture and these changes."""

    def write(folder: Path) -> None:
        config = {
            "model_type": "qwen3",
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "intermediate_size": 256,
            "vocab_size": 14,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "attention_bias": False,
        }
        (folder / "critic").mkdir(exist_ok=True)
        (folder / "critic" / "config.json").write_text(json.dumps(config | changes))
        if weights:
            (folder / "critic" / "model.safetensors").touch()

    return write


CASES = [
    Case("inactive-key", [QUICK, "critic.lr=1e-3"], ["critic.lr=null"]),
    Case("inactive-key", [QUICK, "critic.value_clip=null"], ["algo.advantage=gae"]),
    Case("inactive-key", [BIG, "algo.gae_lambda=0.95"], ["algo.gae_lambda=1"]),
    Case("inactive-key", [*QUICK_PPO, "critic.min_lr=1e-6"], ["critic.min_lr=0"]),
    Case("inactive-key", [*QUICK_PPO, "critic.min_lr=1e-6"], ["critic.lr_schedule=linear"]),
    Case("min-lr-above-lr", [PPO, "critic.lr_schedule=linear", "critic.min_lr=1e-4"], ["critic.min_lr=1e-6"]),
    Case("warmup-longer-than-run", [*QUICK_PPO, "critic.lr_warmup_steps=321"], ["critic.lr_warmup_steps=3"]),
    Case("critic-only-run", [*QUICK_PPO, "critic.critic_only_steps=80"], ["critic.critic_only_steps=8"]),
    Case("model-not-found", [*QUICK_PPO, "critic.path=./gone"], ["critic.path=null"]),
    Case("model-incomplete", [*QUICK_PPO, FOUND], prepare=critic(weights=False), repair=critic()),
    Case("architecture-mismatch", [*QUICK_PPO, FOUND], ["critic.path=null"], critic(hidden_size=256)),
    Case("model-unsupported", [*QUICK_PPO, FOUND], ["critic.path=null"], critic(model_type="gpt2")),
]
