"""What `--verify` looks at: every tensor, bit for bit, and the logits against an implementation that is not ours."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun.backends.megatron import step
from rlrun.backends.megatron.cpu import CPU
from rlrun.backends.megatron.hf_reader import HfWeights
from rlrun.backends.megatron.microbatch import Cut, make_microbatches
from rlrun.data.types import TokenBatch
from rlrun.errors import RunFailed
from rlrun.plan.types import ModelSpec
from rlrun.plan.weight_names import is_fp8

TOLERANCE = 1e-3
"""Of the largest logit; float32 on both sides."""
LENGTHS = (24, 17)
LATENT_NORM = re.compile(r"\.(q|kv)_a_layernorm$")
SINCE = {
    "qwen3": (4, 51),
    "qwen3_moe": (4, 51),
    "qwen3_5": (5, 2),
    "qwen3_5_moe": (5, 2),
    "glm4": (4, 51, 3),
    "glm4_moe": (4, 54),
    "glm4_moe_lite": (5, 0),
    "glm_moe_dsa": (5, 14, 1),
    "minimax_m2": (5, 18),
}
"""The first release of transformers that computes each family as its releases are meant: before 5.18 it rotates whole
heads of MiniMax-M2, before 5.14.1 the halves and not the pairs of GLM-5's indexer."""


def same_tensors(named: Iterable[tuple[str, Tensor]], weights: HfWeights) -> list[str]:
    """`named`, every tensor of the family once, against those of a checkpoint, in the type of the first."""
    differ, count = [], 0
    for name, tensor in named:
        expected = weights.tensor(name).to(tensor.dtype)
        count += 1
        if not torch.equal(_bits(tensor), _bits(expected)):
            differ.append(name)
    expected_count = len(weights.found.sources)
    if differ or count != expected_count:
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        what = f"{', '.join(differ[:3])}{more} changed" if differ else f"{count} of {expected_count} tensors came back"
        raise RunFailed("verify", what, "this is a fault of the conversion or of the disk; nothing was written")
    aside = len(weights.found.untrained)
    also = f"; {aside} that are not trained are copied" if aside else ""
    return [f"verified: all {count} tensors are the same, bit for bit{also}"]


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same_logits(model: Any, spec: ModelSpec, folder: Path) -> list[str]:
    """Megatron's logits of two random sequences against those of transformers, in float32. Turns the model's weights
    into float32."""
    reason = _without_reference(spec, folder)
    if reason is not None:
        return [f"logits not compared: {reason}"]
    random = np.random.Generator(np.random.PCG64(0))
    longest = min(max(LENGTHS), spec.max_position_embeddings)
    if spec.indexer is not None:  # attention is dense as long as every key is selected
        longest = min(longest, spec.indexer.top_k)
    sequences = [random.integers(0, spec.vocab_size, min(n, longest)).astype(np.int64) for n in LENGTHS]
    theirs = _reference(spec, folder, sequences)
    if isinstance(theirs, str):
        return [f"logits not compared: {theirs}"]
    ours = megatron_logits(model, spec, sequences)
    scale = max(float(x.abs().max()) for x in theirs)
    worst = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    import transformers

    found = f"differ by {worst:.1e} at most, of {scale:.1f} (transformers {transformers.__version__})"
    if not worst <= TOLERANCE * scale:
        raise RunFailed("verify", f"logits {found}", "nothing was written; report it with the model's config.json")
    return [f"verified: logits {found}"]


def _without_reference(spec: ModelSpec, folder: Path) -> str | None:
    if is_fp8(folder):
        return "transformers computes FP8 on a GPU only"
    try:
        from rlrun.backends.sglang.cpu import install_torchvision_ops

        install_torchvision_ops()
        import transformers
    except ImportError as error:
        return f"transformers cannot be imported ({error})"
    version = tuple(int(number) for number in re.findall(r"\d+", transformers.__version__)[:3])
    if version < SINCE[spec.family]:
        needed = ".".join(map(str, SINCE[spec.family]))
        return f"transformers {transformers.__version__} does not compute {spec.family} as {needed} and later do"
    return None


@torch.no_grad()
def megatron_logits(model: Any, spec: ModelSpec, sequences: list[np.ndarray]) -> list[Tensor]:
    """[T - 1, V] of each sequence: what is said of every token but the first."""
    model.float()
    model.config.params_dtype, model.config.bf16 = torch.float32, False
    batch = TokenBatch(tokens=sequences, micro_batches=[list(range(len(sequences)))])
    micro_batches = make_microbatches(batch, "packed", Cut(), CPU, train=False)

    def collect(micro_batch: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Any]:
        rows = hidden.transpose(0, 1).reshape(-1, hidden.shape[-1])[micro_batch.rows]
        logits = F.linear(rows, model.output_weight())[:, : spec.vocab_size]
        return logits.sum(), step.no_tokens(logits), logits

    (logits,) = step.run(model, micro_batches, collect, forward_only=True)
    return list(logits.split([len(tokens) - 1 for tokens in sequences]))


def _reference(spec: ModelSpec, folder: Path, sequences: list[np.ndarray]) -> list[Tensor] | str:
    try:
        return reference_logits(spec, folder, sequences)
    except Exception as error:  # whatever another library stumbles over: there is no reference then
        words = (str(error).splitlines() or ["no reason given"])[0]
        return f"transformers cannot compute it ({type(error).__name__}: {words})"


@torch.no_grad()
def reference_logits(spec: ModelSpec, folder: Path, sequences: list[np.ndarray]) -> list[Tensor] | str:
    """The same by transformers; or why it has none: what it does not find it fills with random numbers."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModelForCausalLM)
    model, info = kind.from_pretrained(folder, config=config, dtype=torch.float32, output_loading_info=True)
    lost = sorted(info["missing_keys"])
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return f"transformers does not find {lost[0]}{more} in {folder.name} as {kind.__name__}"
    for name, module in model.eval().named_modules():
        if LATENT_NORM.search(name):  # the class leaves them at 1e-6; engines and Megatron read config.json
            module.variance_epsilon = spec.rms_norm_eps
    return [model(input_ids=torch.from_numpy(tokens)[None]).logits[0, :-1] for tokens in sequences]
