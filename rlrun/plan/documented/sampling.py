"""Codes: which groups are generated, kept and learned from."""

from __future__ import annotations

CODES: dict[str, str] = {
    "filter-needs-group": (
        "dynamic_sampling.filter=drop_zero_variance keeps the groups whose rewards differ. The rewards of a group of "
        "one are all equal, so no group would ever be kept."
    ),
    "no-refill": (
        "Groups may be left out (by dynamic_sampling.filter or rollout.overlong=drop) and an optimizer step has a "
        "fixed number of groups, but neither are more prompts generated than are needed nor is there a refill: the "
        "run would fail at the first group that is dropped. Raise one of the two, or let the step have as many groups "
        "as were kept (algo.groups_per_step=null)."
    ),
    "overlong-buffer-too-long": (
        "rollout.overlong=penalize lowers the reward over the last overlong_buffer_tokens of max_response_tokens; more "
        "of them than there are tokens would punish every sample."
    ),
    "overlong-drop-needs-group": (
        "rollout.overlong=drop takes cut samples out of their group, and drops a group in which fewer than two "
        "rollouts are left. A group of one would always be dropped."
    ),
    "hook-not-importable": (
        "The module of a function named by import path (reward.postprocess, dynamic_sampling.filter or "
        "dynamic_sampling.sample_filter) could not be imported, or has no function of that name. The folder in which "
        "rlrun was started is importable."
    ),
    "hook-arguments": (
        "A function named by import path (reward.postprocess, dynamic_sampling.filter or "
        "dynamic_sampling.sample_filter) cannot be called with one argument, the group."
    ),
}
