"""Logits of checkpoint folders by the reference transformers. Runs in a process of its own (hf_process.py):

    python hf_logits.py JOBS.json OUT.safetensors

JOBS.json is a list of [folder, [token ids of a sequence, ...]]; OUT has `logits_JOB_SEQUENCE`, counted from 0, each
[T, V] in float32.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlrun.backends.sglang.cpu import install_torchvision_ops

install_torchvision_ops()
import transformers  # noqa: E402

LATENT_NORM = re.compile(r"\.(q|kv)_a_layernorm$")


def load(folder: str) -> torch.nn.Module:
    """The model of a checkpoint in float32, by the class that its config.json names.

    transformers fills a tensor that is missing with random numbers and says so in a log. Here it is an error, as is one
    that it does not know, other than those of a multi-token-prediction layer.
    """
    config = transformers.AutoConfig.from_pretrained(folder)
    cls = getattr(transformers, config.architectures[0])
    model, info = cls.from_pretrained(folder, config=config, dtype=torch.float32, output_loading_info=True)
    layers = config.get_text_config().num_hidden_layers
    unexpected = [name for name in info["unexpected_keys"] if not is_draft(name, layers)]
    wrong = {"missing": info["missing_keys"], "mismatched": info["mismatched_keys"], "unexpected": unexpected}
    if any(wrong.values()):
        raise SystemExit(f"{folder} is no checkpoint of {cls.__name__}: {wrong}")
    return model.eval()


def is_draft(name: str, num_layers: int) -> bool:
    """Whether a tensor belongs to a multi-token-prediction layer: `mtp.*`, or a layer after the last."""
    layer = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return name.startswith("mtp.") or (layer is not None and int(layer.group(1)) >= num_layers)


def align_latent_eps(model: torch.nn.Module) -> bool:
    """Gives the norms of latent attention the eps of config.json; whether there are any.

    The classes of GLM-4.7-Flash and GLM-5 leave these norms at their default of 1e-6 where config.json says 1e-5. The
    model's own code, SGLang and Megatron take the configuration's.
    """
    norms = [module for name, module in model.named_modules() if LATENT_NORM.search(name)]
    for norm in norms:
        norm.variance_epsilon = model.config.rms_norm_eps
    return bool(norms)


def logits(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """[T] -> [T, V] of one sequence."""
    return model(input_ids=tokens[None]).logits[0]


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    jobs, out = sys.argv[1:]
    found = {}
    for j, (folder, sequences) in enumerate(json.loads(Path(jobs).read_text())):
        model = load(folder)
        align_latent_eps(model)
        found |= {f"logits_{j}_{i}": logits(model, torch.tensor(s)).contiguous() for i, s in enumerate(sequences)}
    save_file(found, out)


if __name__ == "__main__":
    main()
