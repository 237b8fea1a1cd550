"""Writes tiny checkpoints and what transformers computes with them. Runs in a process of its own (hf_process.py):

    python hf_reference.py FOLDER NAME [NAME ...]

For each fixture FOLDER/NAME is a checkpoint, with config.json and model.safetensors as a release of the family has
them, and FOLDER/NAME.reference.safetensors holds:

    tokens_0 [24], tokens_1 [17]    token ids of two sequences
    weights_0, weights_1            weights of the loss, one a token; the first is 0
    logits_0 [24, V], logits_1      of the checkpoint, in float32
    logprobs_0 [24], logprobs_1     of each token after those before it, at temperature 1; the first is 0
    loss []                         sum over both sequences of weights * logprobs
    gradient.NAME                   of the loss, for every tensor of the checkpoint that has one, by its name there
    hf_eps.*                        latent attention only: logits, logprobs, loss and gradients once more, with norms of
                                    latents at the 1e-6 of the transformers class; elsewhere they have the eps of
                                    config.json (`align_latent_eps`)
    initial_logit_sum []            float64, of the model before its weights were changed, see `family_fixtures`
"""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from family_fixtures import FIXTURES, Fixture
from hf_logits import align_latent_eps, load, logits, transformers
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers.core_model_loading import revert_weight_conversion

LENGTHS = (24, 17)
PREFIX = 12
SCALE, KERNEL_SCALE = 6.0, 25.0
"""Of matrices, and of convolutions over 4 tokens: from a standard deviation of 0.02 to one with which inputs of size 1
give outputs of about size 1. Attention then attends and routers prefer; small numbers would hide mistakes."""
MARGIN = 1e-3
"""Between the score of the last expert that a router selects and the first that it does not."""
NOISE, MOVE = 1e-6, 3e-4
"""A relative change of weights, several times what rounding does, and the most by which it may move a logit."""


def main() -> None:
    folder, *names = sys.argv[1:]
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for name in names:
        tensors = make(FIXTURES[name], Path(folder) / name)
        save_file(tensors, Path(folder) / f"{name}.reference.safetensors")


def make(fixture: Fixture, target: Path) -> dict[str, Tensor]:
    """Writes the checkpoint; the tensors of the reference."""
    initial = initial_logit_sum(fixture, target)
    model = build(fixture.config, target)
    randomise(model)
    weights = on_disk(model, fixture, model.state_dict())
    weights |= draft(weights, fixture)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    model = check_written(model, target)
    sequences = make_sequences(model)
    tensors = {"initial_logit_sum": initial}
    for i, (tokens, loss_weights) in enumerate(sequences):
        check_causal(model, tokens)
        tensors |= {f"tokens_{i}": tokens, f"weights_{i}": loss_weights}
    own = evaluate(model, fixture, sequences)
    if align_latent_eps(model):
        tensors |= {f"hf_eps.{name}": tensor for name, tensor in own.items()}
        own = evaluate(model, fixture, sequences)
    check_names(model, own, weights, target)
    return tensors | own


def build(config: dict, folder: Path) -> torch.nn.Module:
    """The model as its class initialises it with seed 0, from the released form of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    read = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    return getattr(transformers, read.architectures[0])(read).eval().float()


def initial_logit_sum(fixture: Fixture, folder: Path) -> Tensor:
    model = build({**fixture.config, **fixture.summed}, folder)
    with torch.no_grad():
        return logits(model, torch.randint(3, 240, (1, 24))[0]).double().sum()


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    """Changes the text model from where it starts, so that a tensor in the wrong place, a norm shifted by 1 or a bias
    left out shows in the first digits."""
    source = torch.Generator().manual_seed(0)

    def uniform(x: Tensor, reach: float) -> Tensor:
        return torch.rand(x.shape, generator=source) * 2 * reach - reach

    for name, x in model.named_parameters():
        if ".visual." in name:
            continue
        if name.endswith(("A_log", "dt_bias")):
            x.copy_(uniform(x, 1.0))
        elif "norm" in name or name.endswith("bias"):
            x.add_(uniform(x, 0.4))
        else:
            x.mul_(KERNEL_SCALE if "conv1d" in name else SCALE)
    for name, x in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            x.copy_(uniform(x, 0.3))


def on_disk(model: torch.nn.Module, fixture: Fixture, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the module (or gradients of them) under the names, and cut in the way, of released checkpoints.

    In memory the experts of a layer are one tensor. Releases keep one per expert and matrix, and MiniMax has names of
    its own: that is what transformers writes too. Those of Qwen3.5 are released as in memory, although transformers
    would write one per expert. A tied output layer is not stored.
    """
    if fixture.text["tie_word_embeddings"]:
        tensors = {name: x for name, x in tensors.items() if name != "lm_head.weight"}
    if fixture.family != "qwen3_5_moe":
        tensors = revert_weight_conversion(model, tensors)
    return {name: x.detach().clone().contiguous() for name, x in tensors.items()}


def draft(weights: dict[str, Tensor], fixture: Fixture) -> dict[str, Tensor]:
    """The multi-token-prediction layer that releases carry behind the model: shaped like the last layer, random."""
    text, h = fixture.text, fixture.text["hidden_size"]
    layers = text["num_hidden_layers"]
    last = re.compile(rf"^.*\blayers\.{layers - 1}\.")
    shapes: dict[str, tuple[int, ...]] = {}
    if text.get("mtp_num_hidden_layers"):
        own, norms = "mtp.layers.0.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        shapes |= {f"mtp.{norm}.weight": (h,) for norm in norms} | {"mtp.fc.weight": (h, 2 * h)}
    elif text.get("num_nextn_predict_layers"):
        own = f"model.layers.{layers}."
        shapes |= {f"{own}{norm}.weight": (h,) for norm in ("enorm", "hnorm", "shared_head.norm")}
        shapes |= {f"{own}eh_proj.weight": (h, 2 * h)}
        shapes |= {f"{own}{copy}.weight": (text["vocab_size"], h) for copy in ("embed_tokens", "shared_head.head")}
    else:
        return {}
    for name, x in weights.items():
        if last.search(name):
            shapes |= unpacked(last.sub(own, name), tuple(x.shape))
    source = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=source) for name, shape in shapes.items()}


def unpacked(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Experts of a Qwen3.5 draft layer are released one by one, unlike those of the model."""
    if name.endswith("experts.gate_up_proj"):
        base, one = name.removesuffix("gate_up_proj"), (shape[1] // 2, shape[2])
        return {f"{base}{e}.{half}.weight": one for e in range(shape[0]) for half in ("gate_proj", "up_proj")}
    if name.endswith("experts.down_proj"):
        base = name.removesuffix("down_proj")
        return {f"{base}{e}.down_proj.weight": shape[1:] for e in range(shape[0])}
    return {name: shape}


class Margins(TorchFunctionMode):
    """Records how close every selection of the largest k values came to another one."""

    def __init__(self) -> None:
        super().__init__()
        self.smallest = math.inf

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func in (torch.topk, Tensor.topk):
            scores, k = args[0], args[1] if len(args) > 1 else kwargs["k"]
            if k < scores.shape[-1]:
                best = scores.sort(dim=-1, descending=True).values
                self.smallest = min(self.smallest, float((best[..., k - 1] - best[..., k]).min()))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def make_sequences(model: torch.nn.Module) -> list[tuple[Tensor, Tensor]]:
    """(tokens [T], weights of the loss [T]) of each sequence: the first draw of which rounding decides nothing.

    No implementation agrees with another where a router decides between two equals, or where a delta net's output is
    all but 0 before its norm (a query that is orthogonal to the first key).
    """
    shaken = copy.deepcopy(model)
    torch.manual_seed(0)
    for x in shaken.parameters():
        x.mul_(1 + NOISE * torch.randn_like(x))
    for seed in range(1, 1000):
        source = torch.Generator().manual_seed(seed)
        drawn = [torch.randint(3, 240, (length,), generator=source) for length in LENGTHS]
        with Margins() as margins:
            found = [logits(model, tokens) for tokens in drawn]
        if margins.smallest < MARGIN:
            continue
        move = max(float((logits(shaken, t) - x).abs().max()) for t, x in zip(drawn, found, strict=True))
        if move < MOVE:
            weights = [torch.randn(length, generator=source) for length in LENGTHS]
            return [(t, w * (torch.arange(len(w)) > 0)) for t, w in zip(drawn, weights, strict=True)]
    raise SystemExit(f"{type(model).__name__}: rounding decides something in every draw of tokens")


@torch.no_grad()
def check_written(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    """The model read back from disk. The files have to hold exactly what was built."""
    back = load(str(folder))
    tokens = torch.arange(3, 27)
    if not torch.equal(logits(model, tokens), logits(back, tokens)):
        raise SystemExit(f"{folder}: another model comes back from disk")
    return back


def check_names(model: torch.nn.Module, found: dict[str, Tensor], weights: dict[str, Tensor], folder: Path) -> None:
    """Gradients stand under the names of the tensors that they belong to: read as if they were a checkpoint, each comes
    to the parameter of the model that it is the gradient of."""
    gradients = {name.removeprefix("gradient."): x for name, x in found.items() if name.startswith("gradient.")}
    with tempfile.TemporaryDirectory() as other:
        shutil.copy(folder / "config.json", other)
        save_file(weights | gradients, Path(other) / "model.safetensors", metadata={"format": "pt"})
        back = load(other)
    for (name, x), y in zip(model.named_parameters(), back.parameters(), strict=True):
        if x.grad is not None and not torch.equal(x.grad, y):
            raise SystemExit(f"{folder.name}: the gradient of {name} stands under another name")


@torch.no_grad()
def check_causal(model: torch.nn.Module, tokens: Tensor) -> None:
    """No logit may depend on later tokens: some releases of transformers fail this for GLM-5."""
    difference = float((logits(model, tokens)[:PREFIX] - logits(model, tokens[:PREFIX])).abs().max())
    if difference > 1e-5:
        raise SystemExit(f"{type(model).__name__} looks ahead: a prefix alone gives logits that differ by {difference}")


def evaluate(model: torch.nn.Module, fixture: Fixture, sequences: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Logits, log-probs, the loss and its gradients."""
    model.zero_grad(set_to_none=True)
    out: dict[str, Tensor] = {}
    loss = torch.zeros(())
    for i, (tokens, weights) in enumerate(sequences):
        scores = logits(model, tokens)
        chosen = torch.log_softmax(scores[:-1], dim=-1).gather(1, tokens[1:, None])[:, 0]
        logprobs = torch.cat([torch.zeros(1), chosen])
        loss = loss + (weights * logprobs).sum()
        out |= {f"logits_{i}": scores.detach().contiguous(), f"logprobs_{i}": logprobs.detach()}
    loss.backward()
    gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    named = on_disk(model, fixture, gradients)
    return out | {"loss": loss.detach()} | {f"gradient.{name}": x for name, x in named.items()}


if __name__ == "__main__":
    main()
