"""`rlrun models`: which models there are, what works with each family, and which tests say so.

What works is asked of `rlrun.plan.limits`, which refuses the rest when a run starts; sizes and parameters come from
conf/model; which family was compared with what is in `TESTS`, whose names a test looks up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import yaml

from rlrun.config.sections.model import ArchitectureConfig
from rlrun.config.shipped import shipped
from rlrun.families import FAMILIES
from rlrun.plan.build import load_plan
from rlrun.plan.limits import limits
from rlrun.plan.model_spec import make_spec
from rlrun.plan.types import ModelSpec, RunPlan

JSON_SCHEMA = 1
ALL = tuple(FAMILIES)
SERVED = tuple(family for family in FAMILIES if family != "qwen3")
"""Those with a test of an engine that is the same for all; Qwen3 has one of its own."""
MOE_LAYOUT = {"tp": 2, "etp": 2, "sequence_parallel": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "train": {},
    "tp": {"tp": 2, "sequence_parallel": True},
    "pp": {"pp": 2},
    "ep": {"ep": 2, "dp": 2},
    "etp": MOE_LAYOUT,
    "cp": {"cp": 2},
    "packed": {"batching": "packed"},
}


@dataclass(frozen=True)
class Evidence:
    """What was compared with what, the test that does it, and the families it does it for."""

    what: str
    test: str
    families: tuple[str, ...]


TESTS = (
    Evidence(
        "parameters are those of the release, to the last one",
        "tests/plan/test_families.py::test_a_shipped_model_plans_with_its_exact_number_of_parameters",
        ALL,
    ),
    Evidence(
        "logits, gradients and weights are those of transformers, in layouts of one and two ranks",
        "tests/backends/megatron/test_families.py::test_megatron_computes_what_transformers_computes",
        ALL,
    ),
    Evidence(
        "Hugging Face to Megatron and back, bit for bit",
        "tests/backends/megatron/test_convert.py::test_there_and_back_is_the_same_checkpoint_bit_for_bit",
        ALL,
    ),
    Evidence(
        "checkpoints are read and written again, bit for bit",
        "tests/backends/megatron/test_convert.py::test_a_checkpoint_is_written_again_as_it_was_stored",
        ALL,
    ),
    Evidence(
        "an engine on the CPU gives the log-probs of transformers",
        "tests/backends/sglang/test_engines.py::test_logprobs_are_hugging_faces_at_the_sampling_temperature",
        ("qwen3",),
    ),
    Evidence(
        "an engine on the CPU gives the log-probs of transformers, before and after a weight sync",
        "tests/backends/sglang/test_families.py::test_a_family_is_served_as_hugging_face_computes_it",
        SERVED,
    ),
    Evidence(
        "an engine routes by the router that it was sent last",
        "tests/backends/sglang/test_families.py::test_a_new_router_is_used_at_once",
        ("glm4_moe", "glm4_moe_lite"),
    ),
    Evidence(
        "learns from scratch with both engines on the CPU",
        "tests/e2e/test_readme_commands.py::test_the_quickstart_learns",
        ("qwen3",),
    ),
    Evidence(
        "ten steps with both engines on the CPU, which agree on every token",
        "tests/e2e/test_families_with_real_engines.py::test_ten_steps_of_a_family_with_the_real_engines",
        ("qwen3_5_moe", "glm4_moe"),
    ),
    Evidence("learns on a GPU", "tests/e2e/test_gpu.py::test_one_gpu_colocated_learns", ("qwen3",)),
)


@dataclass(frozen=True)
class Model:
    """One file of conf/model."""

    name: str
    parameters: int
    path: str | None


@dataclass(frozen=True)
class FamilyEntry:
    """`train`: parallel size -> whether it can be used (None: the family has nothing to share so). `rollout`: device ->
    whether engines can generate there."""

    name: str
    label: str
    train: dict[str, bool | None]
    rollout: dict[str, bool]
    tested: tuple[tuple[str, str], ...]
    models: tuple[Model, ...]


def catalog() -> list[FamilyEntry]:
    models: dict[str, list[tuple[Model, ModelSpec]]] = {name: [] for name in FAMILIES}
    for model, spec in _models():
        models[spec.family].append((model, spec))
    plan = load_plan(["+experiment=quickstart"])
    usual = _codes(plan)
    found = []
    for family in FAMILIES.values():
        sizes = sorted(models[family.name], key=lambda pair: pair[0].parameters)
        own = replace(plan, model=replace(plan.model, spec=sizes[0][1]))
        tested = tuple((e.what, e.test) for e in TESTS if family.name in e.families)
        rollout = {device: _codes(replace(own, device=device)) <= usual for device in ("cpu", "cuda")}
        shown = tuple(model for model, _ in sizes)
        found.append(FamilyEntry(family.name, family.label, _train(own, usual), rollout, tested, shown))
    return found


def _models() -> Iterator[tuple[Model, ModelSpec]]:
    usual = {name: field.get_default() for name, field in ArchitectureConfig.model_fields.items()}
    for file in sorted((shipped("conf") / "model").glob("*.yaml")):
        text = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        spec = make_spec(text["family"], usual | text["architecture"])
        yield Model(file.stem, spec.num_parameters, text.get("path")), spec


def _codes(plan: RunPlan) -> set[str]:
    """Of what this version cannot run."""
    return {limit.code for limit in limits(plan)}


def _train(plan: RunPlan, usual: set[str]) -> dict[str, bool | None]:
    spec = plan.model.spec
    found: dict[str, bool | None] = {}
    for name, sizes in LAYOUTS.items():
        layout = MOE_LAYOUT if spec.moe is not None and name == "tp" else sizes
        found[name] = _codes(replace(plan, train=replace(plan.train, **layout))) <= usual
    if spec.moe is None:
        found["ep"] = found["etp"] = None
    if spec.linear_attention is not None:  # cp-unsupported, of rules/placement.py
        found["cp"] = False
    return found


def catalog_document(found: Sequence[FamilyEntry]) -> dict[str, Any]:
    families = [asdict(entry) | {"tested": [{"what": w, "test": t} for w, t in entry.tested]} for entry in found]
    return {"schema": JSON_SCHEMA, "families": families}


def render_catalog(found: Sequence[FamilyEntry]) -> str:
    """Tables as text: what works, what was tested, every size."""
    layouts, devices = list(found[0].train), list(found[0].rollout)
    head = ["family", "plan", *layouts, *(f"rollout {device}" for device in devices), ""]
    rows = [
        [e.name, "yes", *(_word(e.train[n]) for n in layouts), *(_word(e.rollout[d]) for d in devices), e.label]
        for e in found
    ]
    title = "What this version runs (yes: nothing refuses it; - : nothing to share; tp to packed are the trainer's)"
    lines = [title, *_table(head, rows), ""]
    lines += ["What was tested"]
    for evidence in TESTS:
        names = "all" if evidence.families == ALL else ", ".join(evidence.families)
        lines += [f"  {evidence.what}: {names}", f"    {evidence.test}"]
    sizes = [[m.name, e.name, f"{m.parameters:,}", m.path or "random weights"] for e in found for m in e.models]
    lines += ["", "Sizes (model=NAME)", *_table(["model", "family", "parameters", "from"], sizes, right=(2,))]
    return "\n".join(lines)


def _word(works: bool | None) -> str:
    return "-" if works is None else "yes" if works else "no"


def _table(head: list[str], rows: list[list[str]], right: tuple[int, ...] = ()) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: list[str]) -> str:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return ("  " + "  ".join(cells)).rstrip()

    return [line(row) for row in [head, *rows]]
