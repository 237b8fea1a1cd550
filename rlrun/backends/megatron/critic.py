"""The critic of PPO: the policy's trunk with a scalar head, in the same process and layout as the policy.

The head, h -> 1, sits on the last pipeline stage and is the same on every tensor-parallel rank. Its value of token t is
read off the row of token t - 1, as the log-prob of token t is: what the return is expected to be before token t is
chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from megatron.core import parallel_state as ps
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from rlrun.algos.values import value_loss
from rlrun.backends.megatron import step
from rlrun.backends.megatron.hf_reader import HfWeights, fill
from rlrun.backends.megatron.microbatch import MicroBatch
from rlrun.backends.megatron.model import build_model, build_optimizer, build_scheduler, wrap_ddp
from rlrun.errors import RlrunError
from rlrun.families import weights_of
from rlrun.plan.types import CriticPlan, ModelSpec, RunPlan
from rlrun.plan.weight_names import problems

HEAD_WEIGHT, HEAD_BIAS = "output_layer.weight", "output_layer.bias"
SCORE = "score.weight"
"""The head of a Hugging Face sequence classifier with one label, which a reward model is."""
HEAD_STD = 0.02


class ValueHead(nn.Linear):
    """[s, b, h] -> [s, b] float32, in float32 whatever the weights are. Replicated over tensor-parallel ranks."""

    def __init__(self, config: TransformerConfig):
        super().__init__(config.hidden_size, 1, dtype=config.params_dtype, device=torch.cuda.current_device())
        # Under sequence parallelism each rank sees its slice of the tokens, and Megatron sums these gradients.
        self.split = self.weight.sequence_parallel = self.bias.sequence_parallel = config.sequence_parallel

    def forward(self, hidden: Tensor) -> Tensor:
        values = F.linear(hidden.float(), self.weight.float(), self.bias.float()).squeeze(-1)
        if not self.split:
            return values
        # Every rank computes the same loss from all values, so each keeps the gradient of its own slice.
        return gather_from_sequence_parallel_region(values, tensor_parallel_output_grad=False)


class ValueModel(GPTModel):
    """GPTModel whose last pipeline stage returns values [b * s] float32 (row b * S + s), not logits."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.post_process:
            self.output_layer = ValueHead(self.config)  # under this name Megatron's checkpoints look for it

    def _postprocess(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        if not self.post_process:
            return hidden_states
        return self.output_layer(hidden_states).transpose(0, 1).reshape(-1)


@dataclass
class Critic:
    plan: CriticPlan
    model: DistributedDataParallel
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    note: str
    """Where its weights came from, for the user."""

    def values(self, micro_batches: list[MicroBatch]) -> list[np.ndarray]:
        """Values [T_i] float32 of all samples, in the order of the batch; entry 0 is 0. Last stage; else empty."""
        self.model.eval()

        def collect(micro_batch: MicroBatch, values: Tensor) -> tuple[Tensor, Tensor, Any]:
            chosen = step.whole(values[micro_batch.rows], micro_batch)
            return chosen.sum(), step.no_tokens(chosen), chosen.cpu().numpy()

        with torch.no_grad():
            outputs = step.run(self.model, micro_batches, collect, forward_only=True)
        return step.by_sample(micro_batches, outputs)

    def gradient(self, micro_batches: list[MicroBatch]) -> dict[str, float]:
        """Adds the gradient of the value loss, summed over micro-batches and all ranks, to the gradient buffers and
        reduces them. Metrics as `step.run_train` gives them."""
        self.model.train()

        def loss(micro_batch: MicroBatch, values: Tensor) -> tuple[Tensor, Tensor, Any]:
            train = micro_batch.train
            value, metrics = value_loss(
                step.whole(values[micro_batch.rows], micro_batch),
                train["old_values"],
                train["returns"],
                train["loss_weights"],
                value_clip=self.plan.value_clip,
            )
            metrics["num_tokens"] = (train["loss_weights"] != 0).sum()
            return value, step.no_tokens(value), {k: m.detach().double().clone() for k, m in metrics.items()}

        return step.reduce_metrics(step.run(self.model, micro_batches, loss, forward_only=False))


def build(plan: RunPlan, dtype: torch.dtype, model_dir: str) -> Critic:
    """The critic of the plan, its weights loaded. `model_dir` is the policy's checkpoint."""
    assert plan.critic is not None
    directory = plan.critic.path or model_dir
    model = build_model(plan.model.spec, plan.train, dtype, kind=ValueModel, tied=False)
    has_head = load_trunk(model, directory, plan.model.spec)
    if ps.is_pipeline_last_stage():
        _load_head(model, directory, plan.model.spec, plan.seed, has_head)
    wrapped = wrap_ddp(model, plan.train)
    optimizer = build_optimizer(wrapped, plan.train, plan.critic.optimizer, plan.checkpoint.gather == "host")
    scheduler = build_scheduler(optimizer, plan.critic.optimizer)
    start = "the policy's weights" if plan.critic.path is None else directory
    head = f"its value head from {SCORE} there" if has_head else f"its value head is new, N(0, {HEAD_STD})"
    return Critic(plan.critic, wrapped, optimizer, scheduler, f"critic starts from {start}; {head}")


@torch.no_grad()
def load_trunk(model: ValueModel, directory: str, spec: ModelSpec) -> bool:
    """Fills everything but the head; returns whether the checkpoint has one. An output layer in it is not looked at.
    Raises RlrunError, on all ranks together, when tensors are missing or of another shape; then nothing was loaded."""
    trunk = [weight for weight in weights_of(spec) if weight.name != HEAD_WEIGHT]
    with HfWeights(directory, spec, trunk) as weights:
        found = weights.found
        hint = "set critic.path to null, or to a checkpoint of the policy's architecture"
        # What it has beside the trunk is not looked at.
        told = problems(replace(found, unexpected=()), f"the critic's checkpoint {directory}", spec, hint)
        if told:
            raise RlrunError(told)
        fill(model, weights, {weight.name: weight for weight in trunk}, skip=(HEAD_WEIGHT, HEAD_BIAS))
        score = weights.stored.get(SCORE)
    return score is not None and score.shape == (1, spec.hidden_size)


@torch.no_grad()
def _load_head(model: ValueModel, directory: str, spec: ModelSpec, seed: int, has_head: bool) -> None:
    """From the checkpoint, else drawn: N(0, 0.02) from the run's seed, so that every rank and layout has the same."""
    head = model.output_layer
    head.bias.zero_()
    if has_head:
        with HfWeights(directory, spec) as weights:
            head.weight.copy_(weights.raw(SCORE))
    else:
        generator = torch.Generator("cpu").manual_seed(seed)
        head.weight.copy_(HEAD_STD * torch.randn(head.weight.shape, generator=generator))
