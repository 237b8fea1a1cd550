"""The model, the prompts and the words that the runs here have in common.

The model has the shape of Qwen3-0.6B and random bfloat16 weights; its tokenizer knows a dozen of the 151,936 ids. So
that it speaks in these, all embedding rows share a direction: those of the tokenizer's ids (end and padding aside) go
along it, all others against it, which puts their logits 20 nats apart. Among each other they stay nearly even, and
small enough for bfloat16. No sample ends early: every response has `max_response_tokens`, and each step the same work.
The task is to write even digits: the reward is the share of the response's characters that are, 5 of 11 at first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import Part

ALPHABET = "0123456789 "
LABEL = "02468"
ALONG, AGAINST = 0.17, -0.28
"""Elements of the direction, in the rows of ids that are spoken and of those that are not; a random weight is 0.02."""


@dataclass(frozen=True)
class Size:
    """Words of one size of run: the model's, and those of the batch."""

    model: tuple[str, ...]
    prompts: int
    group: int
    response: int
    micro_batch: int
    lr: float


FULL = Size(("model=qwen3_0_6b",), 32, 8, 256, 16384, 1e-4)
TINY = Size(
    (
        "model=tiny_qwen3",
        "model.init=pretrained",
        "model.alphabet=null",
        "model.architecture.vocab_size=512",
        "model.architecture.tie_word_embeddings=true",
    ),
    8,
    4,
    16,
    256,
    2e-3,
)


def size(part: Part) -> Size:
    return TINY if part.options.tiny else FULL


def describe(tiny: bool) -> str:
    """Sizes, for the head of the output."""
    s, plan = TINY if tiny else FULL, shape(tiny)
    return (
        f"{plan.model.name}, {plan.model.spec.num_parameters:,} parameters, {plan.model.dtype}; {s.prompts} prompts x "
        f"{s.group} samples of 4 + {s.response} tokens, micro-batches of up to {s.micro_batch} tokens, lr {s.lr:g}"
    )


def shape(tiny: bool) -> Any:
    """A plan of the model, from before it is there."""
    from rlrun.plan.build import load_plan

    model = (TINY if tiny else FULL).model
    return load_plan(["+experiment=quickstart", *_placement(tiny), *model, "model.path=rlrun/random"])


def _placement(tiny: bool) -> list[str]:
    return ["placement=cpu_1"] if tiny else ["placement=gpu_1", "placement.gpu=h200_141gb"]


def words(part: Part, *more: str, steps: int | None = None, graph: bool = True, optimizer_steps: int = 4) -> list[str]:
    """A GRPO run on the model, as words of a command line. `graph`: with CUDA graphs, if they were asked for."""
    s, (model_dir, data) = size(part), files(part)
    own = [
        "+experiment=quickstart",
        *_placement(part.options.tiny),
        *s.model,
        f"model.path={model_dir}",
        f"data.train.path={data}",
        "data.eval=null",
        "eval.interval=null",
        "reward.function=_rewards:share_in_label",
        f"num_steps={steps or part.options.steps}",
        f"algo.prompts_per_rollout={s.prompts}",
        f"algo.group_size={s.group}",
        f"algo.groups_per_step={s.prompts // optimizer_steps}",
        f"algo.lr={s.lr}",
        "rollout.seeded=false",
        f"rollout.max_response_tokens={s.response}",
        f"trainer.max_tokens_per_gpu={s.micro_batch}",
        "checkpoint.interval=null",
        "checkpoint.hf_at_end=false",
        "tracking.enabled=false",
    ]
    if not part.options.tiny:
        own.append(f"rollout.expected_response_tokens={s.response}")
    if not part.options.tiny and part.options.cuda_graph and graph:
        # Those for prefill take a minute to capture, and prompts here are short.
        own += ["rollout.sglang.cuda_graph=true", "+rollout.sglang.cuda_graph_backend_prefill=disabled"]
    return [*own, *more]


def files(part: Part) -> tuple[Path, Path]:
    """(checkpoint, training prompts), made for the first part that asks."""
    folder = Path(part.options.work)
    model, data = folder / "model", folder / "train.jsonl"
    if not data.exists():
        make_model(model, part)
        rows = [json.dumps({"prompt": f"{n:02}", "label": LABEL}) + "\n" for n in range(64)]
        data.write_text("".join(rows), encoding="utf-8")
    return model, data


def make_model(folder: Path, part: Part) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from rlrun.data.tiny_model import EOS_ID, PAD_ID, SPECIAL_TOKENS, make_random_model
    from rlrun.plan.build import load_plan

    plan = load_plan(
        ["+experiment=quickstart", *_placement(part.options.tiny), *size(part).model, "model.path=rlrun/random"]
    )
    make_random_model(str(folder), plan.model.spec, ALPHABET, plan.seed, plan.model.dtype)
    path = folder / "model.safetensors"
    weights = load_file(path)
    rows = weights["model.embed_tokens.weight"]
    signs = torch.randint(0, 2, (rows.shape[1],), generator=torch.Generator().manual_seed(plan.seed)) * 2 - 1
    spoken = [i for i in range(len(SPECIAL_TOKENS) + len(ALPHABET)) if i not in (EOS_ID, PAD_ID)]
    sizes = torch.full((len(rows), 1), AGAINST)
    sizes[spoken] = ALONG
    rows += (sizes * signs).to(rows.dtype)
    save_file(weights, path, metadata={"format": "pt"})
