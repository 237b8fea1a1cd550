"""Every code that configuration, plan and command line raise: what triggers it, and that its hint's change cures it."""

from __future__ import annotations

import json
import re
import runpy
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import rlrun
from rlrun.cli import parse
from rlrun.config.load import reload
from rlrun.errors import Problem, RlrunError
from rlrun.families import fields_of
from rlrun.plan.build import load_plan
from rlrun.plan.codes import CODES
from rlrun.plan.model_spec import make_spec

sys.path.insert(0, str(Path(__file__).parent))
from case import BIG, QUICK, Case
from pinned import PINNED
from weights_on_disk import qwen3_shapes, write_safetensors


def write_rows(folder: Path, *lines: str) -> None:
    (folder / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))


def good_rows(folder: Path) -> None:
    write_rows(folder, *(json.dumps({"prompt": str(i), "label": "1"}) for i in range(20)))


def bad_line_7(folder: Path) -> None:
    good_rows(folder)
    path = folder / "rows.jsonl"
    lines = path.read_text().splitlines()
    lines[6] = '{"prompt": "7", "label": '
    path.write_text("\n".join(lines) + "\n")


CONFIG = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


def checkpoint(**changes: object) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        model = folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(CONFIG | changes))
        architecture = {name: value for name, value in (CONFIG | changes).items() if name in fields_of("qwen3")}
        write_safetensors(model / "model.safetensors", qwen3_shapes(make_spec("qwen3", architecture)))
        (model / "tokenizer.json").write_text("{}")

    return make


def without_weights(folder: Path) -> None:
    checkpoint()(folder)
    (folder / "model" / "model.safetensors").unlink()


def user_file(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


EXPERIMENT = "# @package _global_\ndefaults:\n  - /experiment/quickstart\n  - _self_\n"
PADDED = ["trainer.batching=padded", "trainer.max_tokens_per_gpu=null"]
SPLIT = "placement=split_8gpu"

CASES = [
    Case("unknown-key", [QUICK, "+algo.clip_hi=0.28"]),
    Case("unknown-key", [QUICK, "algo.clip_hi=0.28"]),
    Case("wrong-type", [QUICK, "algo.lr=fast"], ["algo.lr=1e-06"]),
    Case("wrong-type", [QUICK, "name=123"], ["name='\"123\"'"]),
    Case("wrong-type", [QUICK, "algo.group_size=8.0"], ["algo.group_size=8"]),
    Case("not-allowed", [QUICK, "algo.group_size=0"], ["algo.group_size=8"]),
    Case("not-allowed", [QUICK, "rollout.router_policy=fastest"], ["rollout.router_policy=round_robin"]),
    Case("not-allowed", [QUICK, "algo.lr=nan"], ["algo.lr=1e-06"]),
    Case("missing-value", [QUICK, "model=null"], ["model=tiny_qwen3"]),
    Case("missing-value", [QUICK, *PADDED], ["trainer.micro_batch_size=4"]),
    Case("missing-value", [QUICK, "model.alphabet=null"], ["model.alphabet=0123456789"]),
    Case("unknown-option", [QUICK, "model=tiny"]),
    Case("unknown-option", ["+experiment=quick"]),
    Case(
        "unknown-option",
        ["+experiment=mine"],
        config_dir=".",
        prepare=user_file("experiment/mine.yaml", "# @package _global_\ndefaults:\n  - override /model: tinny\n"),
    ),
    Case(
        "yaml-syntax",
        ["+experiment=mine"],
        config_dir=".",
        prepare=user_file("experiment/mine.yaml", "# @package _global_\nname: [1\nseed: 3\n"),
        repair=user_file("experiment/mine.yaml", EXPERIMENT),
    ),
    Case(
        "not-composable",
        ["+experiment=mine"],
        config_dir=".",
        prepare=user_file("experiment/mine.yaml", "# @package _global_\ndefaults:\n  - override /modle: tiny_qwen3\n"),
        repair=user_file("experiment/mine.yaml", EXPERIMENT),
    ),
    Case("bad-override", [QUICK, "data.train.path=a=b"]),
    Case("bad-override", [QUICK, "rollout.stop=[a"]),
    Case("bad-interpolation", [QUICK, "num_steps=${algo.steps}"], ["num_steps=3"]),
    Case("sweep-not-possible", [QUICK, "algo.lr=1e-3,2e-3"]),
    Case("config-dir-not-found", [QUICK], config_dir="nowhere"),
    Case("group-size-too-small", [QUICK, "algo.group_size=1"], ["algo.group_size=8"]),
    Case("groups-per-step-indivisible", [QUICK, "algo.groups_per_step=5"], ["algo.groups_per_step=8"]),
    Case("min-lr-above-lr", [QUICK, "algo.lr_schedule=cosine", "algo.lr=0.1", "algo.min_lr=0.2"], ["algo.min_lr=0.01"]),
    Case("warmup-longer-than-run", [QUICK, "algo.lr_warmup_steps=31"], ["algo.lr_warmup_steps=30"]),
    Case("stop-after-end", [QUICK, "stop_after=31"], ["stop_after=30"]),
    Case("inactive-key", [QUICK, "algo.kl_estimator=k1"], ["algo.kl_estimator=low_var"]),
    Case("inactive-key", [QUICK, "algo.min_lr=1e-9"], ["algo.min_lr=0"]),
    Case("inactive-key", [QUICK, "trainer.micro_batch_size=2"], ["trainer.micro_batch_size=null"]),
    Case("inactive-key", [QUICK, "rollout.sglang.cuda_graph=true"], ["rollout.sglang.cuda_graph=false"]),
    Case(
        "inactive-key", [QUICK, "rollout.sglang.mem_fraction_static=0.5"], ["rollout.sglang.mem_fraction_static=null"]
    ),
    Case("inactive-key", [BIG, "placement.engine_threads=4"], ["placement.engine_threads=1"]),
    Case("inactive-key", [QUICK, "rollout.router_policy=random"], ["rollout.router_policy=round_robin"]),
    Case("inactive-key", [QUICK, "trainer.sequence_parallel=true"], ["trainer.sequence_parallel=false"]),
    Case("inactive-key", [QUICK, "tracking.enabled=false", "tracking.uri=x"], ["tracking.uri=null"]),
    Case("inactive-key", [QUICK, "eval.interval=null"], ["data.eval=null"]),
    Case("inactive-key", [BIG, "eval.samples_per_prompt=4"], ["eval.samples_per_prompt=1"]),
    Case("inactive-key", [QUICK, "model.path=some/model"], ["model.path=null"]),
    Case("inactive-key", [BIG, "model.alphabet=abc"], ["model.alphabet=null"]),
    Case("eval-without-data", [QUICK, "data.eval=null"], ["eval.interval=null"]),
    Case("eval-samples-equal", [QUICK, "eval.samples_per_prompt=4"], ["eval.temperature=1.0"]),
    Case("empty-stop-text", [QUICK, 'rollout.stop=[""]'], ["rollout.stop=[]"]),
    Case("trainer-indivisible", [BIG, "placement.trainer.tp=16"], ["placement.trainer.gpus=16"]),
    Case("too-many-gpus", [BIG, "placement.trainer.gpus=16"], ["placement.num_nodes=2"]),
    Case("too-many-gpus", [BIG, SPLIT, "placement.rollout.gpus=8"], ["placement.num_nodes=2"]),
    Case("too-many-gpus", [QUICK, "placement.rollout.gpus=2"], ["placement.gpus_per_node=2"]),
    Case(
        "engines-indivisible",
        [BIG, SPLIT, "placement.rollout.gpus_per_engine=3"],
        ["placement.rollout.gpus_per_engine=4"],
    ),
    Case(
        "engine-crosses-nodes",
        [
            BIG,
            "placement.num_nodes=2",
            "placement.gpus_per_node=6",
            "placement.rollout.gpus=12",
            "placement.rollout.gpus_per_engine=4",
        ],
        ["placement.rollout.gpus_per_engine=2"],
    ),
    Case("tp-indivisible", [BIG, "placement.trainer.tp=3"], ["placement.trainer.tp=8"]),
    Case(
        "tp-indivisible", [QUICK, "placement=cpu_tp2", "model.architecture.vocab_size=15"], ["placement.trainer.tp=1"]
    ),
    Case(
        "engine-tp-indivisible",
        [BIG, "placement.rollout.gpus=6", "placement.rollout.gpus_per_engine=6"],
        ["placement.rollout.gpus_per_engine=2"],
    ),
    Case("ep-indivisible", [BIG, "model=qwen3_30b_a3b", "placement.trainer.ep=3"], ["placement.trainer.ep=4"]),
    Case("inactive-key", [BIG, "placement.trainer.ep=2"], ["placement.trainer.ep=1"]),
    Case("inactive-key", [QUICK, "placement.gpu=h200_141gb"], ["placement.gpu=h100_80gb"]),
    Case("inactive-key", [QUICK, "placement.host_memory_gib=64"], ["placement.host_memory_gib=null"]),
    Case("inactive-key", [BIG, "model.architecture.num_experts=8"], ["model.architecture.num_experts=null"]),
    Case("missing-value", [BIG, "model.architecture.head_dim=null"], ["model.architecture.head_dim=128"]),
    Case("missing-value", [BIG, "model.family=glm4"]),
    Case("memory-does-not-fit", [BIG, "trainer.recompute=none"], ["trainer.recompute=full"]),
    Case("memory-does-not-fit", [BIG, "placement.trainer.tp=1"], ["rollout.sglang.mem_fraction_static=0.35"]),
    Case(
        "memory-does-not-fit", [BIG, SPLIT, "trainer.max_tokens_per_gpu=600000"], ["trainer.max_tokens_per_gpu=150000"]
    ),
    Case("engine-memory-too-small", [BIG, "model=qwen3_32b"], ["rollout.sglang.mem_fraction_static=0.8"]),
    Case(
        "engine-memory-too-small",
        [BIG, "model=glm4_5_air", "placement.trainer.tp=8", "rollout.sglang.mem_fraction_static=0.9"],
        ["placement.rollout.gpus_per_engine=4"],
    ),
    Case("host-memory-does-not-fit", [BIG, "placement.host_memory_gib=64"], ["placement.host_memory_gib=512"]),
    Case("layers-indivisible", [BIG, "placement.trainer.pp=8"], ["placement.trainer.pp=4"]),
    Case("transport-impossible", [BIG, SPLIT, "weight_sync.transport=tensor"], ["weight_sync.transport=distributed"]),
    Case("transport-impossible", [BIG, "weight_sync.transport=distributed"], ["weight_sync.transport=tensor"]),
    Case(
        "transport-impossible",
        [BIG, "placement.num_nodes=2", "placement.rollout.gpus=16"],
        ["placement.trainer.gpus=16"],
    ),
    Case(
        "transport-impossible",
        [BIG, "placement.num_nodes=2", "placement.rollout.gpus=16"],
        ["placement.rollout.gpus=8"],
    ),
    Case(
        "attention-backend", [QUICK, "rollout.sglang.attention_backend=fa3"], ["rollout.sglang.attention_backend=auto"]
    ),
    Case(
        "attention-backend",
        [BIG, "rollout.seeded=true", "rollout.sglang.attention_backend=torch_native"],
        ["rollout.sglang.attention_backend=auto"],
    ),
    Case(
        "engine-memory-unset",
        [BIG, "rollout.sglang.mem_fraction_static=null"],
        ["rollout.sglang.mem_fraction_static=0.4"],
    ),
    Case("kv-cache-unset", [QUICK, "rollout.sglang.max_total_tokens=null"], ["rollout.sglang.max_total_tokens=65536"]),
    Case("kv-cache-too-small", [QUICK, "rollout.sglang.max_total_tokens=24"], ["rollout.sglang.max_total_tokens=56"]),
    Case("chosen-twice", [QUICK, "placement=cpu_tp2", "placement=cpu_dp2"]),
    Case("chosen-twice", [QUICK, BIG]),
    Case(
        "output-dir-unusable",
        [QUICK, "output_dir=results/mine"],
        ["output_dir=elsewhere"],
        prepare=user_file("results", "a file"),
    ),
    Case("unexpanded-variable", [QUICK, "output_dir=$SCRATCH/runs"], ["output_dir=${oc.env:HOME}/runs"]),
    Case("tracking-uri", [QUICK, "tracking.uri=localhost:5000"], ["tracking.uri=http://localhost:5000"]),
    Case("too-few-samples", [BIG, "algo.groups_per_step=1", "algo.group_size=2"], ["algo.groups_per_step=2"]),
    Case(
        "too-few-samples",
        [BIG, "algo.prompts_per_rollout=1", "algo.groups_per_step=1", "algo.group_size=4"],
        ["algo.prompts_per_rollout=2"],
    ),
    Case("inactive-key", [QUICK, "placement.num_nodes=2"], ["placement.num_nodes=1"]),
    Case("inactive-key", [BIG, SPLIT, "placement.num_nodes=3"], ["placement.num_nodes=1"]),
    Case("inactive-key", [QUICK, "eval.max_prompts=37"], ["eval.max_prompts=36"]),
    Case("unknown-character", [QUICK, "rollout.stop=[end]"], ["rollout.stop=[]"]),
    Case(
        "heads-indivisible",
        [QUICK, "model.architecture.num_key_value_heads=3"],
        ["model.architecture.num_key_value_heads=2"],
    ),
    Case("heads-indivisible", [QUICK, "model.architecture.head_dim=31"], ["model.architecture.head_dim=32"]),
    Case("alphabet-repeats", [QUICK, "model.alphabet=0123456789a0"]),
    Case("vocab-mismatch", [QUICK, "model.alphabet=0123456789"], ["model.architecture.vocab_size=13"]),
    Case("context-too-long", [QUICK, "rollout.max_response_tokens=512"], ["rollout.max_response_tokens=496"]),
    Case("model-not-found", [BIG, "model.path=./nowhere"]),
    Case("model-not-found", [BIG, "model.path=Qwen3-4B"], ["model.path=Qwen/Qwen3-4B"]),
    Case(
        "model-not-found", [BIG, "model.path=./model"], prepare=user_file("model/config.json", "{"), repair=checkpoint()
    ),
    Case("model-incomplete", [BIG, "model.path=./model"], prepare=without_weights, repair=checkpoint()),
    Case("model-unsupported", [BIG, "model.path=./model"], prepare=checkpoint(model_type="llama"), repair=checkpoint()),
    Case(
        "model-unsupported",
        [BIG, "model.path=./model"],
        prepare=checkpoint(rope_scaling={"type": "yarn"}),
        repair=checkpoint(),
    ),
    Case(
        "architecture-mismatch",
        [BIG, "model.path=./model"],
        ["model.architecture.hidden_size=4096"],
        prepare=checkpoint(hidden_size=4096),
    ),
    Case("file-not-found", [QUICK, "data.train.path=row.jsonl"], ["data.train.path=rows.jsonl"], prepare=good_rows),
    Case("malformed-jsonl", [QUICK, "data.train.path=rows.jsonl"], prepare=bad_line_7, repair=good_rows),
    Case(
        "malformed-jsonl",
        [QUICK, "data.train.path=rows.jsonl", "data.train.label_key=answer"],
        ["data.train.label_key=label"],
        prepare=good_rows,
    ),
    Case(
        "dataset-too-small",
        [QUICK, "data.train.path=rows.jsonl", "algo.prompts_per_rollout=32"],
        ["algo.prompts_per_rollout=16"],
        prepare=good_rows,
    ),
    Case(
        "dataset-too-small", [QUICK, "data.eval.path=rows.jsonl"], prepare=user_file("rows.jsonl", ""), repair=good_rows
    ),
    Case("unknown-character", [QUICK, "model.alphabet='123456789'", "model.architecture.vocab_size=12"]),
    Case("unknown-character", [QUICK, "data.system_prompt=hello"], ["data.system_prompt=null"]),
    Case("reward-not-importable", [QUICK, "reward.function=no_such_module:reward"]),
    Case(
        "reward-not-importable",
        [QUICK, "reward.function=exits:reward"],
        prepare=user_file("exits.py", "raise SystemExit(3)"),
    ),
    Case("reward-arguments", [QUICK, "reward.arguments={weight: 2}"], ["~reward.arguments"]),
    Case("port-out-of-range", [QUICK, "rollout.port=65535"], ["rollout.port=null"]),
]


def problems_of(words: Sequence[str], config_dir: str | None = None) -> list[Problem]:
    try:
        load_plan([w for word in words for w in (PINNED if word == QUICK else [word])], config_dir)
    except RlrunError as e:
        return list(e.problems)
    return []


def codes_of(words: Sequence[str], config_dir: str | None = None) -> list[str]:
    return [p.code for p in problems_of(words, config_dir)]


for module in sorted((Path(__file__).parent / "cases").glob("*.py")):
    CASES += runpy.run_path(str(module))["CASES"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}: {case.words[-1]}")
def test_a_broken_configuration_is_named_and_its_hint_works(case: Case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if case.prepare is not None:
        case.prepare(tmp_path)
    found = [p for p in problems_of(case.words, case.config_dir) if p.code == case.code]
    assert found, codes_of(case.words, case.config_dir)
    assert all(p.hint for p in found)
    if not case.fix and case.repair is None:
        return
    hints = " ".join(p.hint or "" for p in found)
    for word in case.fix:
        assert word.lstrip("~").split("=")[0] in hints, f"the hint does not speak of {word}"
    if case.repair is not None:
        case.repair(tmp_path)
    keys = {word.split("=")[0] for word in case.fix}
    fixed = [word for word in case.words if word.split("=")[0] not in keys]
    assert case.code not in codes_of([*fixed, *case.fix], case.config_dir)


def test_a_taken_port_is_named_and_another_one_is_offered():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        first = min(taken, 65_000)
        found = [p for p in problems_of([QUICK, f"rollout.port={first}"]) if p.code == "port-in-use"]
        if first == taken:
            assert str(taken) in found[0].summary
            offered = re.search(r"rollout\.port to (\d+)", found[0].hint or "")
            assert offered is not None
            assert "port-in-use" not in codes_of([QUICK, f"rollout.port={offered.group(1)}"])


def raised_codes(*folders: str) -> set[str]:
    """Codes in the source: the first text handed to Problem(...) or problem(...)."""
    root = Path(rlrun.__file__).parent
    files = [
        f for folder in folders for f in ([root / folder] if folder.endswith(".py") else (root / folder).rglob("*.py"))
    ]
    pattern = re.compile(r'(?:roblem|Limit)\(\s*(?:c,\s*)?"([a-z]+(?:-[a-z]+)+)"')
    return {code for file in files for code in pattern.findall(file.read_text())}


def test_every_code_in_the_source_is_documented_and_every_documented_one_is_raised():
    raised = raised_codes("") | {"wrong-type", "not-allowed"}
    assert raised - set(CODES) == set()
    assert set(CODES) - raised == set()


def test_every_code_of_configuration_plan_and_command_line_is_triggered_here(tmp_path):
    elsewhere = {"port-in-use", "bad-usage", "choice-not-possible"}
    elsewhere |= {"no-run-there", "words-unreadable", "plan-unreadable"}  # test_diff.py
    elsewhere |= raised_codes("plan/limits.py")  # test_limits.py
    ours = (raised_codes("config", "plan", "cli.py") | {"wrong-type", "not-allowed"}) - {"run-failed"}
    assert ours - {case.code for case in CASES} - elsewhere == set()


def test_a_verb_or_flag_that_does_not_exist_is_bad_usage():
    for words in (["pln"], ["plan", "--jason"], ["run", "--json", QUICK], ["explain"], ["resume", "-m", "x"]):
        with pytest.raises(RlrunError) as e:
            parse(words)
        assert [p.code for p in e.value.problems] == ["bad-usage"]


def test_a_run_that_exists_takes_no_new_groups():
    plan = load_plan([QUICK])
    loaded = reload(plan.resolved_config, "plan.json", ["model=qwen3_4b", "num_steps=40"], "quickstart")
    assert [p.code for p in loaded.problems] == ["choice-not-possible"]


def test_problems_that_need_different_parts_come_in_one_report(tmp_path, monkeypatch):
    """The ten broken inputs, each alone and then together."""
    monkeypatch.chdir(tmp_path)
    bad_line_7(tmp_path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        ten = {
            "unknown-key": ["+algo.clip_hi=0.28"],
            "wrong-type": ["algo.lr=fast"],
            "file-not-found": ["data.eval.path=gone.jsonl"],
            "model-not-found": ["model.init=pretrained", "model.alphabet=null", "model.path=./gone"],
            "not-allowed": ["algo.group_size=0"],
            "engine-tp-indivisible": ["placement.rollout.gpus=3", "placement.rollout.gpus_per_engine=3"],
            "too-many-gpus": ["placement.rollout.gpus=3"],
            "malformed-jsonl": ["data.train.path=rows.jsonl"],
            "reward-not-importable": ["reward.function=no_such_module:reward"],
            "port-in-use": [f"rollout.port={port}"],
        }
        for code, words in ten.items():
            assert code in codes_of([QUICK, *words]), code
        together = codes_of([QUICK, *(word for words in ten.values() for word in words)])
    # The heads are unknown while the model is not found, so the rule about them waits for that.
    assert set(ten) - {"engine-tp-indivisible"} <= set(together)
    assert len(together) == len(set(together))


def test_every_bad_line_up_to_five_is_shown_with_its_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = json.dumps({"prompt": "1", "label": "1"})
    write_rows(
        tmp_path, good, "", '["a"]', "{", '{"prompt": 3, "label": 1}', '{"label": 1}', '{"prompt": "1"}', "7", "8"
    )
    [problem] = [p for p in problems_of([QUICK, "data.train.path=rows.jsonl"]) if p.code == "malformed-jsonl"]
    assert [w.origin for w in problem.where] == [*(f"rows.jsonl:{n}" for n in (3, 4, 5, 6, 7)), "command line"]
    assert "7 rows" in problem.summary
    assert "and 2 more" in (problem.hint or "")


def test_all_differing_fields_of_the_architecture_are_listed_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint(hidden_size=4096, num_attention_heads=64, rope_theta=5_000_000)(tmp_path)
    [problem] = [p for p in problems_of([BIG, "model.path=./model"]) if p.code == "architecture-mismatch"]
    for text in (
        "hidden_size 4096 (not 2560)",
        "num_attention_heads 64 (not 32)",
        "rope_theta 5000000 (not 1000000.0)",
    ):
        assert text in problem.summary
    assert len(problem.where) == 4


def test_a_matching_local_checkpoint_plans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint()(tmp_path)
    plan = load_plan([BIG, "model.path=./model"])
    assert plan.model.path == str(tmp_path / "model")
    assert plan.model.spec.num_parameters == 4_022_468_096


def test_a_rule_says_nothing_about_a_key_that_is_itself_wrong():
    assert codes_of([QUICK, "algo.groups_per_step=0"]) == ["not-allowed"]
    assert codes_of([QUICK, "placement.trainer.tp=two"]) == ["wrong-type"]
