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
        "GRPO's advantage is a sample's reward minus the mean of its group. A group of one has advantage zero "
        "everywhere, and nothing would be learned."
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
