"""What share of a GPU's data sheet each kind of work reaches, and fixed costs. One table, because these are the numbers
that an estimate stands on: TRAIN_DENSE was measured, the others are taken from what each of them says.

`benchmarks/bench_estimates.py` compares the estimates with published step times.
"""

from __future__ import annotations

TRAIN_DENSE = 0.38
"""Share of peak in packed, dense training in bfloat16, recomputation counted. One trainer rank with Qwen3-4B and full
recomputation reached 0.28 to 0.30 without counting it, on an H200; smaller models reach less."""

TRAIN_SPARSE = 0.12
"""The same with experts, whose small matrices and uneven loads cost more than half: 0.15 to 0.2 are published for
whole steps of well-tuned mixtures of experts, less for others."""

PREFILL = 0.45
"""Share of peak in prefill: a forward pass over whole prompts, without gradients."""

DECODE_COMPUTE = 0.3
"""Share of peak when so many samples are decoded together that a decode step is bound by arithmetic."""

HBM = 0.5
"""Share of the memory's bandwidth in decoding: weights stream well, caches in pages less so."""

COLLECTIVE = 0.6
"""Share of a link's bandwidth in all-reduce, all-to-all and reduce-scatter of megabytes."""

WEIGHT_SYNC = 0.4
"""Share of a link's bandwidth while weights are gathered, sent and loaded tensor by tensor. Published syncs by plain
NCCL reach 0.1 to 0.85 of one 400 Gb/s adapter; here a single rank sends."""

SHARED_DISK = 2e9
"""Bytes a second that one process writes to, or reads from, a file system that nodes share. Assumed: they differ by
more than ten times."""

DELTA_CHECK = 1e9
"""Bytes of weights a second that an engine's processor reads and checks before it applies changes to its copy, and the
trainer's host afterwards. One core that others used too reached 0.4e9 and 0.9e9."""

BUCKET_S = 0.05
"""Seconds for each bucket of a weight sync beside its bytes: a request to every engine and their barrier."""

LAUNCH_EAGER_S = 0.5e-3
"""Seconds a layer and decode step in which the CPU launches kernels one by one; hides what the GPU needs when less."""

LAUNCH_GRAPH_S = 20e-6
"""The same when a CUDA graph launches them."""

SCHEDULER_S = 1e-3
"""Seconds that an engine's scheduler adds to every decode step."""

ALL_REDUCE_S = 15e-6
"""Latency of a small all-reduce between the GPUs of an engine; two in each layer of a decode step."""

RAGGED = 1.1
"""The slowest data-parallel rank or engine against the mean: shares are balanced by tokens, not perfectly."""

HOST_LINK = 0.7
"""Share of the PCIe bandwidth that copies to and from pinned memory reach, all GPUs of a node at once."""

HOST_MEMORY = 1e11
"""Bytes a second that AdamW on the processors of a node gets from its memory; the memory itself gives about four times
as much."""
