"""The text is an interface: whole outputs, letter by letter, from files written here."""

from __future__ import annotations

import io
import json
from textwrap import dedent

import pytest

from rlrun.errors import Problem, RlrunError, RunFailed, Where
from rlrun.plan.build import load_plan
from rlrun.plan.render import (
    plan_document,
    problems_document,
    render_failure,
    render_plan,
    render_problems,
    render_sweep,
)

FILES = {
    "model/small.yaml": """\
        name: small
        family: qwen3
        init: random
        alphabet: "0123456789abc"
        architecture:
          hidden_size: 64
          num_hidden_layers: 4
          num_attention_heads: 4
          num_key_value_heads: 2
          head_dim: 16
          intermediate_size: 128
          vocab_size: 16
        """,
    "placement/two_sides.yaml": """\
        name: two_sides
        trainer:
          gpus: 4
          tp: 2
        rollout:
          gpus: 4
          gpus_per_engine: 2
        mode: disaggregated
        """,
    "experiment/demo.yaml": """\
        # @package _global_
        defaults:
          - override /model: small
          - override /placement: two_sides
          - _self_
        name: demo
        algo:
          group_size: 8
          lr: 1.0e-5
          loss_aggregation: token_mean
          kl_coef: 0.01
        data:
          train:
            path: rows.jsonl
        reward:
          function: rlrun.agents.rewards:exact_match
        trainer:
          max_tokens_per_gpu: 4096
        weight_sync:
          transport: distributed
        checkpoint:
          interval: 50
        """,
}


@pytest.fixture
def demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": "1", "label": 1}) + "\n" for _ in range(64)))
    return lambda *words: load_plan(["+experiment=demo", *words], ".")


def test_a_plan_fits_on_one_screen(demo):
    plan = demo("num_steps=200")
    text = render_plan(plan, None)
    assert text == dedent(f"""\
        Plan: demo, 1 node x 8 GPUs

          GPU 0-3   train    megatron  tp 2 x dp 2, nccl
          GPU 4-7   rollout  sglang    2 engines x 2 GPUs (tp 2), triton attention, sglang-router round_robin

        Map
          GPU     0  1  2  3  4  5  6  7
          node 0  T0 T1 T2 T3 E0 E0 E1 E1
          T trainer rank, E engine
          slots count GPUs node by node; nodes are in the order of their addresses, GPUs of their CUDA ids

          model     small, 150,208 parameters, bfloat16, random weights
          step      64 prompts x 8 samples = 512 samples, 256 per dp rank; 200 steps
          batch     packed up to 4,096 tokens a micro-batch, optimizer state sharded over dp
          mode      synchronous (max_staleness 0), disaggregated
          length    prompt up to 1,024, response up to 1,024 tokens, temperature 1
          loss      grpo (reward - mean / std), clip 0.8..1.2, token_mean, KL 0.01 (low_var)
          ratio     1 throughout (one optimizer step a rollout): never clipped, no pass for old log-probs
          lr        1e-05 constant, 200 optimizer steps in all
          weights   nccl, 300.4 kB bfloat16 each step, to each of 2 engines
          seed      1234: initial weights, trainer, data order by epoch, engine i (+i)
          data      rows.jsonl, 64 rows
          reward    rlrun.agents.rewards:exact_match
          eval      never
          track     mlflow experiment demo
          save      runs/demo, every 50 steps and at the end, newest 2 kept
          hash      {plan.config_hash}

        Memory of a GPU (h100_80gb), estimated: fits
          train     [..........] 3.0 of 79.1 GiB  overhead 3.0
          logprob   [..........] 3.0 of 79.1 GiB  overhead 3.0
          save      [..........] 3.0 of 79.1 GiB  overhead 3.0
          sync      [..........] 3.5 of 79.1 GiB  bucket 0.5, overhead 3.0
          rollout   [#########.] 70.2 of 79.1 GiB  KV cache 67.2, overhead 3.0
          kv        282,003,439 tokens an engine (256 bytes each), 137,696 samples of full length at once;
                    up to 64 requests run
          logits    made in pieces; whole they would take 0.0 GiB with their gradient
          host      32.0 GiB a node while saving  processes 32.0

        Time of a step, estimated: 8.3 s
          generate  [#########.] 8.3 s    64 samples an engine, 3 ms a token by kernel launches, tail 1.5 s
          logprob   [..........] <0.01 s
          train     [..........] <0.01 s
          sync      [..........] 0.05 s
          step      62,800 tokens/s, 59 % bubble, mean staleness 0; 200 steps 0.46 hours, 3.7 GPU-hours
          assumed   mean prompt 512 tokens, response 512 (see rollout.expected_response_tokens), longest
                    1,024; no rewards, evaluation, checkpoints; estimates came to 0.6 to 1.5 times published
                    steps, and weight syncs are less sure

        Set away from the defaults
          num_steps                          100 -> 200                   command line
          model.init                         pretrained -> random         model/small.yaml:3
          model.alphabet                     null -> "0123456789abc"      model/small.yaml:4
          algo.kl_coef                       0 -> 0.01                    experiment/demo.yaml:11
          algo.lr                            1e-06 -> 1e-05               experiment/demo.yaml:9
          placement.mode                     colocated -> disaggregated   placement/two_sides.yaml:8
          placement.trainer.gpus             8 -> 4                       placement/two_sides.yaml:3
          placement.trainer.tp               1 -> 2                       placement/two_sides.yaml:4
          placement.rollout.gpus             8 -> 4                       placement/two_sides.yaml:6
          placement.rollout.gpus_per_engine  1 -> 2                       placement/two_sides.yaml:7
          trainer.max_tokens_per_gpu         null -> 4096                 experiment/demo.yaml:18
          weight_sync.transport              tensor -> distributed        experiment/demo.yaml:20
          checkpoint.interval                null -> 50                   experiment/demo.yaml:22

        4 train workers, 2 engines, 8 of 8 GPUs. Nothing was started.""")


def test_lines_are_at_most_100_columns(demo):
    plan = demo("data.system_prompt='" + "1 " * 60 + "'", "model.alphabet='0123456789ab '", "trainer.recompute=full")
    assert max(map(len, render_plan(plan, None).splitlines())) <= 105  # an origin may end a line late
    problem = Problem("some-code", "word " * 60, (Where("command line", "x=1"),), "word " * 60)
    assert max(map(len, render_problems([problem], None).splitlines())) <= 100


def test_errors_show_values_origins_and_one_change(demo):
    with pytest.raises(RlrunError) as e:
        demo("placement.rollout.gpus_per_engine=3", "+algo.clip_hi=0.28")
    found = [p for p in e.value.problems if p.code in ("unknown-key", "engines-indivisible")]
    assert render_problems(found, None) == dedent("""\
        error[unknown-key]: algo has no key `clip_hi`
          command line   +algo.clip_hi=0.28

        hint: did you mean `algo.clip_high`?

        error[engines-indivisible]: 4 rollout GPUs cannot form engines of 3
          command line                 placement.rollout.gpus_per_engine=3
          placement/two_sides.yaml:6   placement.rollout.gpus: 4

        hint: set placement.rollout.gpus_per_engine to 1, 2 or 4

        Found 2 errors. Nothing was started.""")


def test_one_error_is_counted_as_one():
    assert render_problems([Problem("a-b", "bad")], None).endswith("Found 1 error. Nothing was started.")


def test_a_failed_run_names_its_part():
    text = render_failure(RunFailed("engine 0", "ended with code 1", "see its log"), None)
    assert text == "error[run-failed]: engine 0: ended with code 1\n\nhint: see its log"


def test_a_sweep_shows_the_first_point_and_lists_all(demo):
    plans = [demo("algo.lr=0.001"), demo("algo.lr=0.002")]
    text = render_sweep(plans, ["algo.lr=0.001", "algo.lr=0.002"], None)
    assert text.startswith(render_plan(plans[0], None))
    assert text.endswith(
        "Sweep of 2 points, one after the other\n"
        f"  algo.lr=0.001   {plans[0].config_hash}\n  algo.lr=0.002   {plans[1].config_hash}"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_and_not_with_no_color(demo, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    plan = demo()
    assert "\x1b[" in render_plan(plan, Terminal())
    assert "\x1b[" not in render_plan(plan, io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in render_plan(plan, Terminal())


def test_json_documents_have_fixed_keys(demo):
    document = plan_document(demo())
    assert list(document) == ["schema", "plan", "map", "problems"]
    assert document["schema"] == 1
    assert json.loads(json.dumps(document))["plan"]["train"]["tp"] == 2
    problems = problems_document([Problem("a-b", "bad", (Where("command line", "x=1"),), "good")])
    assert problems == {
        "schema": 1,
        "plan": None,
        "map": None,
        "problems": [
            {"code": "a-b", "summary": "bad", "where": ({"origin": "command line", "text": "x=1"},), "hint": "good"}
        ],
    }
