"""Seconds of the trainer's phases: log-probs (a forward pass for each model that gives some) and optimizer steps.

    log-probs     F operations for each of policy, reference and teacher that the algorithm asks
    critic        F for its values and as much as train for its optimizer steps, without an output layer
    train         3F, F once more for layers that are recomputed, and once more for logits, which always are
    time          operations / (GPUs x peak x utilisation) x (1 + (pp - 1) / micro-batches) x raggedness
                  + all-reduces of tensor parallelism + all-to-alls of expert parallelism
                  + gradients and weights of an optimizer step exchanged, + optimizer state read and written

Padded micro-batches cost as much as their longest sample in every row.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.plan.activations import key_value_width
from rlrun.plan.estimate import efficiency
from rlrun.plan.estimate.flops import causal_pairs, forward
from rlrun.plan.estimate.work import Work
from rlrun.plan.memory import state
from rlrun.plan.parameters import share
from rlrun.plan.types import ModelSpec


@dataclass(frozen=True)
class Train:
    logprobs_s: float
    critic_s: float
    train_s: float
    pipeline_bubble: float  # share of both in which a pipeline stage waits


def train(w: Work) -> Train:
    layers, head = forward_flops(w)
    recomputed = layers if w.layout.recompute else 0.0
    stretch = 1 + (w.layout.pp - 1) / micro_batches(w)
    logprobs = _seconds(w, w.forward_passes * (layers + head), stretch) + w.forward_passes * exchange_s(w, passes=1)
    if w.layout.teacher is not None:
        logprobs += _seconds(w, sum(forward_flops(w, w.layout.teacher)), stretch)
    stepping = exchange_s(w, passes=3 if w.layout.recompute else 2) + w.optimizer_steps * optimizer_s(w)
    optimize = _seconds(w, 3 * (layers + head) + recomputed + head, stretch) + stepping
    critic = 0.0
    if w.layout.critic:
        critic = _seconds(w, 4 * layers + recomputed, stretch) + exchange_s(w, passes=1) + stepping
    return Train(logprobs, critic, optimize, 1 - 1 / stretch)


def forward_flops(w: Work, spec: ModelSpec | None = None) -> tuple[float, float]:
    """(layers, output layer) of one forward pass of the policy, or of another model, over all samples of a step."""
    f = forward(spec or w.layout.spec)
    padding = padded_tokens(w) / w.sample_tokens
    tokens, pairs = w.sample_tokens * padding, causal_pairs(w.sample_tokens, w.sample_tokens_squared) * padding**2
    head = tokens * f.head
    return w.num_samples * (f.sequence(tokens, pairs) - head), w.num_samples * head


def padded_tokens(w: Work) -> float:
    """Mean row of a micro-batch: its longest sample when padded, which of m evenly spread ones is m / (m + 1) up."""
    size = w.layout.micro_batch_size
    if size is None:
        return w.sample_tokens
    return w.sample_tokens + w.spread * (2 * size / (size + 1) - 1)


def micro_batches(w: Work) -> int:
    """Micro-batches of one rank in an optimizer step."""
    samples = w.num_samples / w.optimizer_steps / w.layout.dp
    if w.layout.micro_batch_size is not None:
        return max(1, -int(-samples // w.layout.micro_batch_size))
    return max(1, -int(-samples * w.sample_tokens // (w.layout.tokens * w.layout.cp)))


def _seconds(w: Work, operations: float, stretch: float) -> float:
    utilisation = efficiency.TRAIN_DENSE if w.layout.spec.moe is None else efficiency.TRAIN_SPARSE
    ragged = efficiency.RAGGED if w.layout.dp > 1 else 1.0
    return operations / (w.trainer_gpus * w.gpu.flops * utilisation) * stretch * ragged


def exchange_s(w: Work, passes: int) -> float:
    """Tensor parallelism: two all-reduces of the hidden states a layer and pass. Context parallelism: the keys and
    values of the other ranks, or their gradients. Expert parallelism: each token's hidden state to its experts and
    back."""
    m, spec = w.layout, w.layout.spec
    one = w.num_samples * padded_tokens(w) / (m.dp * m.cp) * m.weight_bytes  # bytes of a value of each token
    hidden = one * spec.hidden_size
    layers = passes * spec.num_layers / m.pp
    seconds = 0.0
    if m.tp > 1:
        seconds += layers * 2 * 2 * (m.tp - 1) / m.tp * hidden / _link(w, m.tp)
    if m.cp > 1:
        seconds += layers * (m.cp - 1) * one * key_value_width(spec) / m.tp / _link(w, m.tp * m.cp)
    if m.ep > 1 and spec.moe is not None:
        sent = hidden / (m.tp if m.sequence_parallel else 1) * spec.moe.experts_per_token * (m.ep - 1) / m.ep
        sparse = layers * (spec.num_layers - spec.moe.first_dense) / spec.num_layers
        seconds += sparse * 2 * sent / _link(w, m.ep)
    return seconds


def optimizer_s(w: Work) -> float:
    """One optimizer step of the largest stage: float32 gradients reduced, weights gathered, state read and written."""
    m = w.layout
    worst = max(state(m), key=lambda terms: sum(terms.values()))
    copies = m.dp * m.cp
    exchanged = (worst["gradients"] + worst["weights"]) * (copies - 1) / copies / _link(w, w.trainer_gpus // m.pp)
    if not m.optimizer_offload:
        return exchanged + 2 * worst["optimizer"] / w.gpu.hbm
    # This rank's share of gradients down and of weights up, and AdamW in the memory of the node.
    owned = max(share(plain, m.shards[0]) + share(experts, m.shards[1]) for plain, experts in m.parameters())
    moved = owned * (m.gradient_bytes + m.weight_bytes) / (w.gpu.host * efficiency.HOST_LINK)
    touched = 2 * owned * (m.master_bytes + 2 * m.moment_bytes) * min(w.gpus_per_node, w.trainer_gpus)
    return exchanged + moved + touched / efficiency.HOST_MEMORY


def _link(w: Work, ranks: int) -> float:
    """Bytes a second between so many consecutive ranks."""
    return w.gpu.link(ranks <= w.gpus_per_node) * efficiency.COLLECTIVE
