"""The algorithm of a plan in a few lines: what an advantage is, what the loss is, and what corrects it."""

from __future__ import annotations

from rlrun.plan.types import AlgoPlan

ESTIMATES = {
    "rloo": "rloo (reward - mean of the others)",
    "reinforce_plus_plus": "reinforce_plus_plus (return of each token)",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline (reward - mean)",
}

ONE_LINE = 88


def loss_rows(a: AlgoPlan) -> list[tuple[str, str]]:
    """(label, text): always the loss, then what is not as usual."""
    if a.supervised:
        entropy = f", entropy bonus {a.loss.entropy_coef:g}" if a.loss.entropy_coef else ""
        return [("loss", f"sft: negative log-likelihood of the responses{entropy}, {_aggregation(a)}")]
    advantage, loss = _advantage(a), f"{_surrogate(a)}, {_aggregation(a)}{_kl(a)}"
    rows = [("loss", f"{advantage}, {loss}")]
    if len(rows[0][1]) > ONE_LINE:
        rows = [("estimate", advantage), ("loss", loss)]
    if a.old_logprobs == "current":
        text = "1 throughout (one optimizer step a rollout): never clipped, no pass for old log-probs"
        rows.append(("ratio", text))
    elif a.old_logprobs == "rollout":
        rows.append(("ratio", "over the log-probs of the engines"))
    corrections = _corrections(a)
    if corrections:
        rows.append(("correct", ", ".join(corrections)))
    if a.teacher is not None:
        size = f"{a.teacher.spec.num_parameters:,} parameters"
        rows.append(("distil", f"{a.opd_coef:g} x log-ratio to the teacher {a.teacher.path}, {size}"))
    return rows


def _advantage(a: AlgoPlan) -> str:
    scale = " / std" if a.normalize_by_std else ""
    text = f"grpo (reward - mean{scale})" if a.advantage == "grpo" else ESTIMATES.get(a.advantage, a.advantage)
    if a.advantage == "gae":
        text = f"gae (lambda {a.gae_lambda:g})"
    discount = f", gamma {a.gamma:g}" if a.gamma != 1 else ""
    return text + discount + (", whitened" if a.whiten_advantages else "")


def _surrogate(a: AlgoPlan) -> str:
    o = a.loss
    kind = "" if o.kind == "ppo_clip" else f"{o.kind} "
    dual = f", dual clip {o.dual_clip:g}" if o.dual_clip is not None else ""
    entropy = f", entropy bonus {o.entropy_coef:g}" if o.entropy_coef else ""
    return f"{kind}clip {1 - o.clip_low:g}..{1 + o.clip_high:g}{dual}{entropy}"


def _aggregation(a: AlgoPlan) -> str:
    return a.loss_aggregation + (f" of {a.loss_constant:,} tokens" if a.loss_constant else "")


def _kl(a: AlgoPlan) -> str:
    if not a.uses_reference:
        return ", no KL"
    to = f" to {a.reference_path}" if a.reference_path is not None else ""
    if a.kl_reward_coef:
        return f", KL {a.kl_reward_coef:g} in the rewards ({a.loss.kl_estimator}){to}"
    unbiased = ", unbiased" if a.loss.kl_unbiased else ""
    return f", KL {a.loss.kl_coef:g} ({a.loss.kl_estimator}{unbiased}){to}"


def _corrections(a: AlgoPlan) -> list[str]:
    i, found = a.loss.importance, []
    if i is not None and i.correction != "none":
        found.append(f"{i.correction} by {i.level}, engine to trainer {i.low:g}..{i.high:g}")
    if i is not None and i.veto is not None:
        found.append(f"veto below {i.veto:g}")
    if a.loss.opsm_delta is not None:
        found.append(f"off-policy sequences masked above {a.loss.opsm_delta:g}")
    return found
