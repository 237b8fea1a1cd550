"""The attention core in plain torch: causal, packed or padded, on context-parallel ranks or not, and never with a T x T
matrix.

Packed samples are kept apart by their lengths, not by a mask. On CUDA in 16 bits a packed row is one call of the
kernel for ragged rows, which torch has built in; anything else is computed piece by piece.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn

from rlrun.data import zigzag

CPU_ROWS = 512
"""Queries that see one part of the keys and are computed together on a CPU: their mask has this many rows."""

WIDEST_HEAD = 256
"""Of torch's flash kernels."""

ASKS_FOR_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""torch 2.11's kernel for ragged rows takes fewer key heads as they come; later releases want to be told."""


class CausalAttention(MegatronModule):
    """softmax(q k^T * scale) v, causal. `softmax_scale` None is 1 / sqrt(width of a key); `k_channels` and `v_channels`
    are the widths of a key and of a value where they differ from the configuration's (latent attention).

    Under context parallelism every rank has its chunks of the queries (`rlrun.data.zigzag`) and collects
    all keys and values of the row; in the backward pass their gradients are summed over the ranks.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ):
        super().__init__(config=config)
        assert attn_mask_type in (AttnMaskType.causal, AttnMaskType.padding_causal), attn_mask_type
        assert attention_type == "self", attention_type
        assert config.attention_dropout == 0.0, "attention has no dropout"
        assert config.window_size is None, "attention has no window"
        self.scale = softmax_scale
        self.key_width = k_channels or config.kv_channels
        self.value_width = v_channels or config.kv_channels
        self.cp_group = pg_collection.cp if pg_collection else parallel_state.get_context_parallel_group()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params=None,
    ) -> Tensor:
        """Padded: query [s, b, heads, d], key [s, b, groups, d], value [s, b, groups, dv] -> [s, b, heads * dv];
        padding is on the right, where causality already hides it. Packed (thd): [t, heads, d] -> [t, heads * dv], the
        whole row cut by `cu_seqlens`, which is on the CPU. s and t are this rank's part."""
        assert attention_mask is None
        assert attention_bias is None
        assert attn_mask_type in (None, AttnMaskType.causal, AttnMaskType.padding_causal), attn_mask_type
        assert (key.shape[-1], value.shape[-1]) == (self.key_width, self.value_width)
        cp, packed = self.cp_group.size(), packed_seq_params is not None
        if packed:
            bounds = packed_seq_params.cu_seqlens_q.tolist()
            lengths = tuple(end - start for start, end in itertools.pairwise(bounds))
            query, key, value = (x[:, None] for x in (query, key, value))
        else:
            lengths = (cp * query.shape[0],)
        assert sum(lengths) == cp * query.shape[0], "cu_seqlens do not cover the packed row"
        parts = pieces(lengths, cp, self.cp_group.rank(), query.device)
        if parts.index is not None:
            # One collective for both; a rank's row comes whole behind the other's.
            both = torch.cat([key, value], dim=-1)
            both = gather_from_sequence_parallel_region(both, tensor_parallel_output_grad=True, group=self.cp_group)
            key, value = both.index_select(0, parts.index).split([self.key_width, self.value_width], dim=-1)
        output = attend(query, key, value, parts, self.scale).flatten(2)
        return output[:, 0] if packed else output


@dataclass(frozen=True)
class Pieces:
    """A row of queries in pieces that follow each other, and the keys that go with each, likewise: the last query of a
    piece sees all of its keys, the one before all but the last. `index`: where those keys are in the rows of all
    context-parallel ranks, end to end; None when they are the row itself. `cu_*` [pieces + 1] int32: where pieces
    begin."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    index: Tensor | None
    cu_queries: Tensor
    cu_keys: Tensor


@functools.lru_cache(maxsize=64)
def pieces(lengths: tuple[int, ...], cp: int, rank: int, device: torch.device) -> Pieces:
    """Of a row whose samples have these lengths, padding included. Every layer asks again, for the same few rows."""
    queries, keys, index = zigzag.prefixes(lengths, cp, rank)

    def move(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Pieces(
        queries=tuple(queries),
        keys=tuple(keys),
        index=None if index is None else move(index),
        cu_queries=move(np.cumsum([0, *queries], dtype=np.int32)),
        cu_keys=move(np.cumsum([0, *keys], dtype=np.int32)),
    )


def attend(
    query: Tensor, key: Tensor, value: Tensor, parts: Pieces, scale: float | None, ragged: bool | None = None
) -> Tensor:
    """query [sum(queries), b, heads, d], key [sum(keys), b, groups, d], value [sum(keys), b, groups, dv] ->
    [sum(queries), b, heads, dv]. Key and value may have fewer heads (grouped queries). `ragged`: by the kernel for
    ragged rows; None uses it where it can and is faster."""
    width = value.shape[-1]
    if width != query.shape[-1] and _half_on_cuda(query):
        # The flash kernels have one width; zeros behind a value only add zeros to the result.
        value = F.pad(value, (0, query.shape[-1] - width))
    if ragged if ragged is not None else takes_ragged(query) and is_ragged_faster(query, parts):
        output = _ragged(query, key, value, parts, scale)
    else:
        output = _one_by_one(query, key, value, parts, scale)
    return output[..., :width]


LAUNCH = 2.9e6 * 4096
"""What the calls for one piece cost at least, in multiply-adds of queries with keys that a GPU does in that time."""

RAGGED = 1.75
"""How much longer the kernel for ragged rows takes for a long piece than the one of a single piece.

Both as seen on an H200 with torch 2.11 (benchmarks/gpu/bench_attention.py, 32 heads of 128 columns): 128 pieces of 128
tokens 8.7 times as fast together, 16 of 1k 1.3 times, one of 16k 0.56 times."""


def is_ragged_faster(query: Tensor, parts: Pieces) -> bool:
    """Many short pieces are computed together, few long ones each by itself."""
    columns = query.shape[1] * query.shape[2] * query.shape[3]
    work = [columns * n * m for n, m in zip(parts.queries, parts.keys, strict=True)]
    return RAGGED * sum(work) < sum(max(LAUNCH, each) for each in work)


def takes_ragged(query: Tensor) -> bool:
    """Whether the kernel for ragged rows computes this: flash attention, for one row, in 16 bits."""
    batch, width = query.shape[1], query.shape[-1]
    fits = batch == 1 and width % 8 == 0 and width <= WIDEST_HEAD
    return fits and _half_on_cuda(query) and _has_flash(query.device)


@functools.cache
def _has_flash(device: torch.device) -> bool:
    built = torch.backends.cuda.is_flash_attention_available()
    return built and torch.cuda.get_device_capability(device) >= (8, 0)


def _half_on_cuda(query: Tensor) -> bool:
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)


def _ragged(query: Tensor, key: Tensor, value: Tensor, parts: Pieces, scale: float | None) -> Tensor:
    output = varlen_attn(
        query[:, 0],
        key[:, 0],
        value[:, 0],
        parts.cu_queries,
        parts.cu_keys,
        max(parts.queries),
        max(parts.keys),
        scale=scale,
        window_size=(-1, 0),  # causal, counted from the ends of queries and keys
        **({"enable_gqa": True} if ASKS_FOR_GROUPS and query.shape[2] != key.shape[2] else {}),
    )
    return output[:, None]


def _one_by_one(query: Tensor, key: Tensor, value: Tensor, parts: Pieces, scale: float | None) -> Tensor:
    if query.is_cuda and not _half_on_cuda(query):
        # In 32 bits only the kernel that knows no grouped queries needs no T x T scores.
        key, value = (x.repeat_interleave(query.shape[2] // x.shape[2], dim=2) for x in (key, value))
    q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    cut = zip(q.split(parts.queries, dim=2), k.split(parts.keys, dim=2), v.split(parts.keys, dim=2), strict=True)
    outputs = [_piece(q, k, v, scale) for q, k, v in cut]
    output = torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]
    return output.permute(2, 0, 1, 3)


def _piece(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """q [b, heads, n, d], k and v [b, groups, m, ...] with m >= n: query i sees the first m - n + i + 1 keys."""
    n, m = q.shape[2], k.shape[2]
    kernel = functools.partial(F.scaled_dot_product_attention, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    if n == m:
        return kernel(q, k, v, is_causal=True)
    if q.is_cuda:
        return kernel(q, k, v, attn_mask=causal_lower_right(n, m))
    outputs = []
    for start in range(0, n, CPU_ROWS):
        end = min(start + CPU_ROWS, n)
        last = torch.arange(m - n + start, m - n + end, device=q.device)
        seen = m - n + end
        mask = torch.arange(seen, device=q.device) <= last[:, None]
        outputs.append(kernel(q[:, :, start:end], k[:, :, :seen], v[:, :, :seen], attn_mask=mask))
    return torch.cat(outputs, dim=2)
