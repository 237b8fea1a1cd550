"""Every metric rlrun logs, with its unit. One vocabulary for MLflow, metrics.jsonl and the progress line.

The step axis of all of them is the loop's step, from 1; evaluation before the first step is at 0.
"""

from __future__ import annotations

REWARD = "rollout/reward_mean"
LOSS = "train/loss"

PHASES = {
    "generate": "generation",
    "logprobs": "the log-prob passes",
    "values": "the critic's forward passes",
    "critic": "the critic's optimizer steps",
    "train": "the optimizer steps",
    "save": "a checkpoint",
    "hf": "the export in Hugging Face format",
    "sync": "the weight sync",
    "eval": "the evaluation",
}
"""Phases of a step whose memory is measured."""

METRICS: dict[str, str] = {
    REWARD: "mean reward of the step's samples",
    "rollout/reward_std": "standard deviation of the same rewards",
    "rollout/reward_max": "largest reward of the step",
    "rollout/zero_variance_groups": "share of prompt groups whose rewards are all equal (they teach nothing), 0..1",
    "rollout/response_tokens_mean": "mean response length, tokens",
    "rollout/response_tokens_max": "longest response, tokens",
    "rollout/truncated": "share of samples ended by max_response_tokens, 0..1",
    "rollout/aborted": "share of samples the engine aborted (masked out of the loss), 0..1",
    "rollout/samples": "samples learned from in the step",
    "rollout/response_tokens_generated": "response tokens generated in the step, dropped groups included",
    "rollout/groups_generated": "prompt groups generated in the step",
    "rollout/groups_buffered": "groups kept and not needed, which wait for the next step",
    "rollout/groups_discarded": "groups kept, not needed and dropped",
    "rollout/refills": "times that more prompts were generated because too few groups were kept",
    "rollout/dropped_zero_variance": "groups dropped because all their rewards are equal",
    "rollout/dropped_filter": "groups dropped by the function of dynamic_sampling.filter",
    "rollout/dropped_overlong": "groups dropped because fewer than two of their rollouts were not cut",
    "rollout/dropped_stale": "buffered groups dropped because they had become too old",
    "rollout/removed": "share of samples that teach nothing (over-long, or by dynamic_sampling.sample_filter), 0..1",
    "rollout/staleness_max": "trainer version minus sample version, largest of the step",
    LOSS: "total loss, mean over the step's optimizer steps",
    "train/nll": "negative log-likelihood of the given responses, nats (SFT)",
    "train/pg_loss": "policy part of the loss, after corrections",
    "train/kl_loss": "KL to the reference model in the loss, before kl_coef",
    "train/advantage_abs_mean": "mean size of the advantage, over the tokens in the loss",
    "train/importance_weight": "mean factor of the correction for the gap between engine and trainer",
    "train/importance_dropped": "share of tokens that this correction drops, 0..1",
    "train/opsm_dropped": "share of tokens dropped by off-policy sequence masking, 0..1",
    "train/entropy": "entropy of the policy at the sampled positions, nats",
    "train/pg_clip_fraction": "share of tokens that clipping changed, 0..1",
    "train/ppo_kl": "mean of old minus new log-prob",
    "train/ratio_max": "largest policy ratio of the step",
    "train/grad_norm": "gradient norm before clipping, mean over the optimizer steps",
    "train/value_loss": "squared error of the critic's values (clipped), mean over the step's optimizer steps",
    "train/value_clip_fraction": "share of tokens whose value had gone beyond critic.value_clip, 0..1",
    "train/explained_variance": "share of the returns' variance that the critic foretold before its update, up to 1",
    "train/value_mean": "mean value of the policy's tokens, before the update",
    "train/return_mean": "mean return of the same tokens",
    "train/critic_grad_norm": "norm of the critic's gradient before clipping, mean over the optimizer steps",
    "train/critic_lr": "learning rate of the critic's last optimizer step",
    "train/lr": "learning rate of the last optimizer step",
    "train/tokens": "tokens in the loss",
    "train/epoch": "passes over the training rows so far (SFT)",
    "train/optimizer_steps": "optimizer steps taken since the run began",
    "train/train_rollout_logprob_abs_diff": "mean |trainer - engine| log-prob of the sampled tokens, before the update",
    "train/train_rollout_logprob_abs_diff_max": "largest such difference",
    "train/policy_version": "version the engines serve after the step",
    "perf/step_s": "seconds of the whole step",
    "perf/generate_s": "seconds of generation and rewards",
    "perf/logprobs_s": "seconds of the log-prob passes",
    "perf/values_s": "seconds of the critic's forward passes",
    "perf/critic_s": "seconds of the critic's optimizer steps",
    "perf/train_s": "seconds of the optimizer steps",
    "perf/sync_s": "seconds of the weight sync",
    "perf/offload_s": "seconds in which state of trainer and engines was moved off the GPUs and back",
    "perf/save_s": "seconds for which the loop waited for checkpoints, when one was made, begun or completed",
    "perf/save_background_s": "seconds for which a checkpoint was written beside the loop, when that one was completed",
    "perf/hf_s": "seconds of the policy's export in Hugging Face format, when one was made",
    "perf/eval_s": "seconds of the evaluation, when one was made",
    "perf/train_tokens_per_s": "prompt and response tokens a second of the optimizer steps (SFT)",
    "perf/response_tokens_per_s": "response tokens generated a second of generation",
    "memory/host_used_gib": "host memory used on the fullest node of the trainer, everything there counted, GiB",
    "memory/host_parked_gib": "host memory that the fullest rank keeps for its state while engines generate, GiB",
    **{
        f"memory/{phase}_gib": f"GPU memory that {what} needed on the fullest GPU, GiB: what the plan estimates"
        for phase, what in PHASES.items()
    },
    **{
        f"memory/{phase}_used_gib": f"GPU memory used at the end of {what} on the fullest GPU, GiB"
        for phase, what in PHASES.items()
    },
    "sync/bytes": "bytes sent to each engine",
    "sync/full_updates": "with delta transport, engines that got all weights instead of changes",
    "sync/canary_abs_diff_max": "canary: largest engine-trainer log-prob difference on a fixed text",
    "eval/reward_mean": "mean reward on the evaluation prompts",
    "eval/response_tokens_mean": "mean response length on the evaluation prompts, tokens",
}


def check_names(values: dict[str, float]) -> None:
    """An undocumented name is our own mistake."""
    unknown = sorted(set(values) - set(METRICS))
    assert not unknown, f"metrics without a description: {unknown}"
