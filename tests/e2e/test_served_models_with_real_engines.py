"""A frozen model that rewards, and a server that somebody else has started, in runs with the real engines on CPU.

One external server is shared: it is refused, attached beside an engine of the run's own, attached alone, and killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import SMALL, assert_nothing_left, metrics, run, start, summary, wait_for_step

from rlrun.backends.sglang.cpu import install_torchvision_ops
from rlrun.backends.sglang.served import ServedModel
from rlrun.backends.sglang.server import ServerProcess, http_json
from rlrun.data.tiny_model import make_random_model
from rlrun.plan.build import load_plan

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
RECIPE = ["--config-dir", str(ROOT / "recipes" / "judge" / "conf"), "+experiment=judge"]
STEPS = 4
PARITY = 1e-4
REWARD = """
import json
from recipes.judge.likely import likely

def score(prompt, response_text, label, models, log):
    reward = likely(prompt, response_text, label, models)
    entry = {"prompt": prompt.token_ids, "response": response_text, "reward": reward, "models": sorted(models)}
    entry["said"] = models["judge"].chat(prompt.messages[-1]["content"], max_tokens=3)
    with open(log, "a") as f:
        f.write(json.dumps(entry) + "\\n")
    return reward
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """Folder of the judge: of the policy's shape, with other weights."""
    model = load_plan(["+experiment=quickstart"]).model
    folder = tmp_path_factory.mktemp("judge")
    make_random_model(str(folder), model.spec, model.alphabet, 99, "float32")
    return folder


@pytest.fixture(scope="module")
def external(judge, tmp_path_factory):
    """A server that no run has started, with the judge's weights until it is sent others."""
    plan = load_plan(["+experiment=quickstart"])
    server = ServerProcess(plan.engines[0], plan, str(judge), str(tmp_path_factory.mktemp("external")))
    try:
        server.start()
        server.wait_ready(240)
        yield server
    finally:
        server.stop()


def args(output_dir, judge, *more):
    small = SMALL[1:]
    models = [f"rollout.models.judge.path={judge}"]
    return [*RECIPE, *small, *models, f"num_steps={STEPS}", "tracking.enabled=false", f"output_dir={output_dir}", *more]


def attached(server):
    return f"placement.rollout.external=[{{url: '{server.address.url}'}}]"


def alone(output_dir, server, *more):
    """The quickstart on external engines only."""
    none = [
        "placement.rollout.gpus=8",
        "rollout.sglang.max_total_tokens=null",
        "rollout.sglang.max_running_requests=64",
    ]
    words = ["placement.mode=disaggregated", "weight_sync.transport=disk", attached(server), "tracking.enabled=false"]
    return [*SMALL, *none, *words, f"output_dir={output_dir}", *more]


def hf_logprobs(folder, sequences):
    """Log-probs of all tokens but the first, by transformers."""
    install_torchvision_ops()
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        tables = [model(torch.tensor([ids])).logits[0].log_softmax(-1).numpy() for ids in sequences]
    return [
        [float(table[t, ids[t + 1]]) for t in range(len(ids) - 1)] for table, ids in zip(tables, sequences, strict=True)
    ]


def asked(server):
    return ServedModel("external", "", server.address.url, 60.0, 1)


def test_a_server_that_is_something_else_is_refused_with_every_difference(external, tmp_path):
    sizes = ["model.architecture.hidden_size=64", "model.architecture.intermediate_size=128"]
    command = run(alone(tmp_path, external, *sizes, "rollout.max_response_tokens=300"), tmp_path)
    assert command.process.returncode == 2, command.text[-3000:]
    said = " ".join(command.text.split())
    assert "error[external-mismatch]" in said
    assert "hidden_size 128, not 64" in said
    assert "ffn_hidden_size 256, not 128" in said
    assert "a context of 19 tokens, less than the 316" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*/*/logs/*")), "something was started"
    assert_nothing_left(command)
    assert external.alive()


def test_a_judge_rewards_and_an_external_engine_gets_every_version(external, judge, tmp_path, monkeypatch):
    (tmp_path / "judge_reward.py").write_text(REWARD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    log = tmp_path / "rewards.jsonl"
    more = [
        "reward.function=judge_reward:score",
        f"reward.arguments={{log: {log}}}",
        attached(external),
    ]
    command = run(args(tmp_path, judge, *more), tmp_path)
    assert command.process.returncode == 0, command.text[-3000:]
    assert summary(command)["steps"] == STEPS
    assert_nothing_left(command)

    rows = metrics(command.run_dir())
    worst = max(row["train/train_rollout_logprob_abs_diff_max"] for row in rows)
    assert 0 < worst < PARITY
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(entries) == STEPS * 32
    assert all(entry["models"] == ["judge"] for entry in entries)
    # The judge never got a weight: its rewards are those of its own checkpoint.
    alphabet = load_plan(["+experiment=quickstart"]).model.alphabet
    sequences = [[*e["prompt"], *(3 + alphabet.index(c) for c in e["response"]), 2] for e in entries[-8:]]
    for entry, values in zip(entries[-8:], hf_logprobs(judge, sequences), strict=True):
        expected = np.exp(np.mean(values[len(entry["prompt"]) - 1 :]))
        assert entry["reward"] == pytest.approx(expected, abs=PARITY)

    logs = {path.name for path in (command.run_dir() / "logs").iterdir()}
    assert logs == {"engine_0.log", "engine_1.log", "router.log"}
    assert f"external engine {external.address.url} is left running, with the weights of step {STEPS}" in command.text
    assert external.alive()
    assert http_json(f"{external.address.url}/model_info")["weight_version"] == str(STEPS)
    last = Path(summary(command)["hf_checkpoint"])
    assert asked(external).logprobs(sequences[0]) == pytest.approx(hf_logprobs(last, sequences[:1])[0], abs=PARITY)
    assert asked(external).logprobs(sequences[0]) != pytest.approx(hf_logprobs(judge, sequences[:1])[0], abs=PARITY)


def test_external_engines_alone_generate_and_their_loss_ends_the_run(external, tmp_path):
    more = ["num_steps=1000", "algo.lr_schedule=constant"]
    command = start(alone(tmp_path, external, *more), tmp_path)
    wait_for_step(command, 2)
    assert not [line for line in command.family().values() if "sglang.launch" in line]
    os.killpg(external.pid, signal.SIGKILL)
    assert command.wait(60) == 1, command.text[-3000:]
    assert f"external engine {external.address.url}" in command.text
    assert "Traceback" not in command.text
    assert summary(command)["status"] == "failed"
    assert_nothing_left(command)
