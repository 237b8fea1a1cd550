"""What the tests of the gated delta net run on every rank; see `megatron_jobs`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from rlrun.backends.base import Rendezvous
from rlrun.plan.types import LinearAttentionSpec, RunPlan

HIDDEN = 24
SHAPE = LinearAttentionSpec(num_key_heads=2, num_value_heads=4, key_dim=8, value_dim=16, conv_kernel=4, full_interval=4)
KEYS, VALUES = SHAPE.num_key_heads * SHAPE.key_dim, SHAPE.num_value_heads * SHAPE.value_dim
SECTIONS = {
    "in_proj.weight": [KEYS, KEYS, VALUES, VALUES, SHAPE.num_value_heads, SHAPE.num_value_heads],
    "conv1d.weight": [KEYS, KEYS, VALUES],
    "A_log": [SHAPE.num_value_heads],
    "dt_bias": [SHAPE.num_value_heads],
}
"""Parameters that are cut along dim 0, each section by itself."""

Arrays = dict[str, np.ndarray]


def shard(name: str, full: torch.Tensor, rank: int, tp: int) -> torch.Tensor:
    if name == "out_proj.weight":
        return full.chunk(tp, 1)[rank]
    if name == "out_norm.weight":
        return full
    return torch.cat([section.chunk(tp)[rank] for section in full.split(SECTIONS[name])])


def merge(name: str, shards: list[np.ndarray]) -> np.ndarray:
    if name == "out_proj.weight":
        return np.concatenate(shards, 1)
    if name == "out_norm.weight":
        assert all(np.array_equal(s, shards[0]) for s in shards)
        return shards[0]
    cuts = np.cumsum(SECTIONS[name])[:-1] // len(shards)
    return np.concatenate([np.concatenate(part) for part in zip(*(np.split(s, cuts) for s in shards), strict=True)])


@contextmanager
def built(
    rendezvous: Rendezvous, plan: RunPlan, weights: Arrays | None = None, shape: LinearAttentionSpec = SHAPE
) -> Iterator[Any]:
    """The module alone, with its tensor-parallel share of the weights."""
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    from rlrun.backends.megatron import cpu, device
    from rlrun.backends.megatron.delta_net import delta_net_fields, delta_net_submodules

    train, dtype = plan.train, getattr(torch, plan.model.dtype)
    device.setup(plan)
    with cpu.shim():
        device.join(plan, rendezvous)
        try:
            config = TransformerConfig(
                num_layers=1,
                hidden_size=HIDDEN,
                num_attention_heads=4,
                normalization="RMSNorm",
                layernorm_epsilon=1e-6,
                layernorm_zero_centered_gamma=True,
                activation_func=F.silu,
                gated_linear_unit=True,
                add_bias_linear=False,
                params_dtype=dtype,
                bf16=dtype == torch.bfloat16,
                tensor_model_parallel_size=train.tp,
                sequence_parallel=train.sequence_parallel,
                gradient_accumulation_fusion=False,
                **delta_net_fields(shape),
            )
            groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
            module = build_module(delta_net_submodules(config), config=config, layer_number=1, pg_collection=groups)
            rank = parallel_state.get_tensor_model_parallel_rank()
            for name, parameter in module.named_parameters():
                if weights is not None:
                    parameter.data.copy_(shard(name, torch.from_numpy(weights[name]), rank, train.tp))
            yield module
        finally:
            device.leave()


def packing(lengths: list[int]) -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    longest = max(lengths)
    return PackedSeqParams("thd", bounds, bounds, max_seqlen_q=longest, max_seqlen_kv=longest)


def delta_net(
    rendezvous: Rendezvous, plan: RunPlan, weights: Arrays, hidden: np.ndarray, upstream: np.ndarray, lengths: list[int]
) -> dict[str, Any]:
    """Output of a batch [s, b, h] and the gradients of sum(output * upstream). With lengths, it is one packed row."""
    sequence_parallel, tp = plan.train.sequence_parallel, plan.train.tp
    with built(rendezvous, plan, weights) as module:

        def mine(array: np.ndarray) -> torch.Tensor:
            whole = torch.from_numpy(array)
            return whole.chunk(tp)[rendezvous.rank].clone() if sequence_parallel else whole.clone()

        x = mine(hidden).requires_grad_()
        arguments = {"packed_seq_params": packing(lengths)} if lengths else {}
        # As a TransformerLayer calls it.
        out, bias = module(
            x,
            attention_mask=None,
            inference_context=None,
            rotary_pos_emb=torch.zeros(1),
            rotary_pos_cos=None,
            rotary_pos_sin=None,
            rotary_pos_cos_sin=None,
            attention_bias=None,
            sequence_len_offset=None,
            **arguments,
        )
        assert bias is None
        (out * mine(upstream)).sum().backward()
        return {
            "output": out.detach().numpy(),
            "input_gradient": x.grad.numpy(),
            "gradients": {name: p.grad.numpy() for name, p in module.named_parameters()},
            "kernel": module.kernel,
        }


def delta_net_steps(
    rendezvous: Rendezvous, plan: RunPlan, weights: Arrays | None, hidden: np.ndarray, directory: str, resume: bool
) -> dict[str, Any]:
    """Two optimizer steps with a checkpoint between them, or, with `resume`, the second one from that checkpoint."""
    from rlrun.backends.megatron import checkpoint
    from rlrun.backends.megatron.model import build_optimizer, build_scheduler, wrap_ddp

    with built(rendezvous, plan, weights) as module:
        model = wrap_ddp(module, plan.train)
        optimizer = build_optimizer(model, plan.train, plan.algo.optimizer)
        scheduler = build_scheduler(optimizer, plan.algo.optimizer)
        x = torch.from_numpy(hidden).to(getattr(torch, plan.model.dtype))

        def values() -> Arrays:
            return {name: p.detach().float().numpy().copy() for name, p in module.named_parameters()}

        def step() -> Arrays:
            model.zero_grad_buffer()
            optimizer.zero_grad()
            model(x)[0].float().square().sum().backward()
            model.finish_grad_sync()
            optimizer.step()
            scheduler.step(1)
            return values()

        found: dict[str, Any] = {"dtypes": {name: str(p.dtype) for name, p in module.named_parameters()}}
        if resume:
            checkpoint.load(directory, model, optimizer, scheduler, plan.train)
            return found | {"loaded": values(), "second": step()}
        found["first"] = step()
        checkpoint.save(directory, model, optimizer, scheduler, plan.train)
        return found | {"second": step()}


def delta_net_kept(rendezvous: Rendezvous, plan: RunPlan, shape: LinearAttentionSpec) -> float:
    """Bytes a token that the module keeps for its backward pass, without its input and its weights."""
    kept: dict[int, torch.Tensor] = {}
    with built(rendezvous, plan, shape=shape) as module:
        x = torch.randn(640, 1, HIDDEN, dtype=getattr(torch, plan.model.dtype)).requires_grad_()

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out, _ = module(x, packed_seq_params=packing([140, 500]))
        for given in (x, *module.parameters()):
            kept.pop(given.untyped_storage().data_ptr(), None)
        del out
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / len(x)
