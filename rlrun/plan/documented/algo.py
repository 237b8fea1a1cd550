"""Codes: algorithm."""

from __future__ import annotations

CODES: dict[str, str] = {
    "sampling-truncated": (
        "rollout.top_p, top_k and min_p cut the distribution that samples are drawn from, while SGLang returns the "
        "log-probs of the distribution before the cut, and the trainer computes the same. Policy-gradient losses "
        "would weigh every sample by a probability it was not drawn with, so only 1, -1 and 0 are accepted. "
        "Evaluation learns nothing from its samples: eval.top_p and eval.top_k may cut."
    ),
    "group-size-too-small": (
        "The advantage of grpo, rloo and reinforce_plus_plus_baseline is a sample's reward against the others of its "
        "group. A group of one has advantage zero everywhere, and nothing would be learned."
    ),
    "whitening-required": (
        "The reinforce_plus_plus estimators neither divide by a group's deviation nor (without a baseline) subtract a "
        "mean: whitening over all tokens of the rollout is what gives their advantages a scale and a sign."
    ),
    "kl-counted-twice": (
        "The KL to the reference belongs into the loss (algo.kl_coef) or into the rewards (algo.kl_reward_coef). In "
        "both, it would be penalised twice with two different gradients."
    ),
    "importance-level": (
        "GSPO looks at sequences: its ratio is the same on every token of one. A correction by token would give the "
        "tokens of a sequence different weights again; correct by sequence, or by the geometric mean."
    ),
    "function-not-found": (
        "algo.advantage and algo.loss may name a function of your own as package.module:name. The module is looked up "
        "from the folder in which rlrun was started and on Python's path, and read without importing it (a loss "
        "imports torch, which planning does without); the name has to be a plain function defined there with `def`, "
        "or imported from where it is."
    ),
    "function-signature": (
        "An estimator is called as f(scored), a policy loss as f(tokens, options): see rlrun/algos/advantages.py "
        "(Scored) and rlrun/algos/losses.py (Tokens)."
    ),
    "reference-mismatch": (
        "The reference model is loaded into the same network as the policy, so algo.reference_path has to hold a "
        "checkpoint of the same architecture. Null takes the policy's initial weights."
    ),
    "teacher-tokenizer": (
        "On-policy distillation asks the teacher how likely the policy's own tokens are. That means something only "
        "when both have the same vocabulary and the same tokenizer."
    ),
    "teacher-indivisible": (
        "The teacher lives on the trainer's GPUs with the same tensor and pipeline parallel sizes, which have to "
        "divide its heads, columns and layers too."
    ),
    "groups-per-step-indivisible": (
        "The prompt groups of a rollout are cut into optimizer steps of algo.groups_per_step groups; a rest "
        "would be thrown away. The hint lists sizes that divide."
    ),
    "min-lr-above-lr": "algo.min_lr is where a decaying learning rate ends, so it cannot be above algo.lr.",
    "warmup-longer-than-run": (
        "The run has num_steps x prompts_per_rollout / groups_per_step optimizer steps, fewer than "
        "algo.lr_warmup_steps: the learning rate would never reach algo.lr."
    ),
    "critic-only-run": (
        "critic.critic_only_steps is the number of steps at the beginning in which the policy stays as it is, so that "
        "the critic can learn its values first. It has to be smaller than num_steps."
    ),
    "sft-needs-train-only": (
        "algo.loss=sft learns the responses that are in the data. Nothing is generated, so engines would hold GPUs and "
        "never be asked: placement.mode has to be train_only."
    ),
    "sft-group-size": "With algo.loss=sft a group is one row of the data, with its one response: algo.group_size is 1.",
    "stop-after-end": "stop_after is a step at which to stop early, and it lies behind the last step.",
    "eval-without-data": "eval.interval asks for evaluations, and data.eval names no prompts.",
    "eval-samples-equal": (
        "At temperature 0 decoding is greedy and all samples of a prompt are the same, so more than one costs "
        "time and adds nothing."
    ),
    "empty-stop-text": "An empty text occurs at the start of every response, so each sample would end at once.",
    "context-too-long": (
        "rollout.max_prompt_tokens + rollout.max_response_tokens is more than the model's "
        "max_position_embeddings: its position embedding was not made for such lengths."
    ),
}
