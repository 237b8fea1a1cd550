"""Real SGLang servers on CPU: one shared by the module, and a second one for what needs two."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from scipy import stats

from rlrun.backends.base import Completion, EngineAddress, GenerateRequest
from rlrun.backends.sglang.client import SglangClient, to_completion
from rlrun.backends.sglang.cpu import install_torchvision_ops
from rlrun.backends.sglang.server import RouterProcess, ServerProcess
from rlrun.errors import RunFailed
from rlrun.plan.types import SyncPlan
from rlrun.weight_sync.canary import check_canary
from rlrun.weight_sync.senders import make_sender

pytestmark = pytest.mark.engines

START_S = 180.0
PROMPT = (1, 4, 13, 5, 1)
FP32 = 1e-4


class Live:
    """One engine, and a Hugging Face model that should always have the same weights."""

    def __init__(self, plan, server: ServerProcess, model_dir: str):
        install_torchvision_ops()
        from transformers import AutoModelForCausalLM

        self.plan, self.server, self.model_dir = plan, server, model_dir
        self.hf = AutoModelForCausalLM.from_pretrained(model_dir)
        self.version = 0

    def logprobs(self, tokens, temperature: float = 1.0) -> np.ndarray:
        """Log-probs of tokens[1:], by Hugging Face."""
        with torch.no_grad():
            logits = self.hf(torch.tensor([list(tokens)])).logits[0] / temperature
        table = logits.log_softmax(-1)[:-1]
        return table.gather(1, torch.tensor(list(tokens[1:])).unsqueeze(1)).squeeze(1).numpy()

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, parameter.detach()) for name, parameter in self.hf.named_parameters()]

    def change_weights(self) -> None:
        generator = torch.Generator().manual_seed(self.version)
        for _, tensor in self.weights():
            tensor.add_(0.1 * tensor.std(correction=0) * torch.randn(tensor.shape, generator=generator) + 0.001)

    def use(self, call, router_url: str | None = None, engines: list[EngineAddress] | None = None):
        """Runs `call(client)` in an event loop of its own."""

        async def main():
            client = SglangClient(engines or [self.server.address], router_url, self.plan.rollout)
            try:
                return await call(client)
            finally:
                await client.close()

        return asyncio.run(main())

    def generate(self, prompt=PROMPT, seeds=tuple(range(8)), temperature=1.0, tokens=12, stop=()) -> list[Completion]:
        return self.use(lambda client: client.generate(GenerateRequest(prompt, seeds, temperature, tokens, stop)))


@pytest.fixture(scope="module")
def live(make_plan, make_model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("live")
    plan = make_plan(max_running_requests=256)
    model_dir = make_model(str(directory / "model"), plan)
    server = ServerProcess(plan.engines[0], plan, model_dir, str(directory / "logs"))
    server.start()
    try:
        engine = Live(plan, server, model_dir)  # loads while the server starts
        server.wait_ready(START_S)
        engine.first = engine.generate()
        yield engine
    finally:
        server.stop()


def assert_parity(live: Live, completions: list[Completion], temperature: float = 1.0, prompt=PROMPT) -> None:
    for completion in completions:
        expected = live.logprobs([*prompt, *completion.token_ids], temperature)[len(prompt) - 1 :]
        np.testing.assert_allclose(completion.logprobs, expected, atol=FP32)
        assert completion.policy_version == live.version


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_logprobs_are_hugging_faces_at_the_sampling_temperature(live, temperature):
    assert_parity(live, live.generate(temperature=temperature), temperature)


def test_greedy_takes_the_most_likely_token(live):
    first, second = live.generate(seeds=(None, None), temperature=0.0, tokens=4)
    assert first.token_ids == second.token_ids
    tokens = list(PROMPT)
    for token in first.token_ids:
        with torch.no_grad():
            assert live.hf(torch.tensor([tokens])).logits[0, -1].argmax().item() == token
        tokens.append(token)


def test_scores_are_hugging_faces(live):
    tokens = [*PROMPT, *range(3, 20)]
    scores = live.use(lambda client: client.score(tokens, 0))
    metrics = check_canary(live.logprobs(tokens), [scores], "float32", live.version)
    assert metrics["max_abs_diff"] < FP32


def test_samples_end_at_the_stop_token_or_the_length(live):
    completions = live.generate(seeds=tuple(range(60)), tokens=20)
    reasons = {completion.finish_reason for completion in completions}
    assert reasons == {"stop", "length"}
    for completion in completions:
        assert 2 not in completion.token_ids[:-1]
        if completion.finish_reason == "stop":
            assert completion.token_ids[-1] == 2
        else:  # also when the last token allowed is the stop token: SGLang looks at the length first
            assert len(completion.token_ids) == 20
        assert "<|im_end|>" not in completion.text
    assert_parity(live, completions)


def test_a_stop_string_ends_a_sample_and_stays_in_its_ids(live):
    stopping = live.plan.model.alphabet[0]
    token = 3
    completions = live.generate(seeds=tuple(range(60)), tokens=20, stop=(stopping,))
    stopped = [c for c in completions if c.finish_reason == "stop" and c.token_ids[-1] == token]
    assert stopped
    for completion in completions:
        assert token not in completion.token_ids[:-1]
        assert completion.finish_reason == "length" or stopping not in completion.text
    assert_parity(live, completions)


def test_an_aborted_sample_keeps_what_it_has(live):
    body = {
        "input_ids": list(PROMPT),
        "sampling_params": {"max_new_tokens": 240, "ignore_eos": True, "sampling_seed": 3},  # long enough to catch
        "return_logprob": True,
    }

    async def main():
        running = asyncio.create_task(asyncio.to_thread(post, live, "/generate", body))
        while not running.done():
            await asyncio.to_thread(post, live, "/abort_request", {"abort_all": True})
            await asyncio.wait([running], timeout=0.02)
        return to_completion(json.loads(await running))

    completion = asyncio.run(main())
    assert completion.finish_reason == "abort"
    assert len(completion.token_ids) == len(completion.logprobs) < 240
    assert_parity(live, [completion])


def test_a_seed_gives_the_same_sample_in_any_batch(live):
    """Bit for bit, log-probs included: alone, in its group, and among prompts of other lengths."""
    seeds = tuple(range(16))
    group = live.generate(seeds=seeds)

    async def crowded(client):
        others = [GenerateRequest((1, *range(3, 3 + n), 1), (900 + n,) * 4, 0.9, 16) for n in range(1, 15)]
        mine = GenerateRequest(PROMPT, seeds, 1.0, 12)
        answers = await asyncio.gather(*map(client.generate, [*others[:7], mine, *others[7:]]))
        return answers[7]

    for again in (live.use(crowded), [live.generate(seeds=(seed,))[0] for seed in seeds]):
        assert [c.token_ids for c in again] == [c.token_ids for c in group]
        assert [c.logprobs for c in again] == [c.logprobs for c in group]
    assert len({c.token_ids for c in group}) > 12  # and another seed another sample


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_samples_follow_the_models_distribution(live, temperature):
    n = 2000
    completions = live.generate(seeds=tuple(range(n)), temperature=temperature, tokens=1)
    with torch.no_grad():
        probs = (live.hf(torch.tensor([list(PROMPT)])).logits[0, -1] / temperature).double().softmax(-1).numpy()
    counts = np.bincount([c.token_ids[0] for c in completions], minlength=len(probs))
    rare = probs * n < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(probs[~rare], probs[rare].sum()) * n
    assert stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 3), (0.4, -1), (1.0, 1)])
def test_an_evaluation_draws_from_the_most_probable_tokens_and_log_probs_are_those_of_all(live, top_p, top_k):
    request = GenerateRequest(PROMPT, tuple(range(200)), 2.0, 1, (), top_p, top_k)
    completions = live.use(lambda client: client.generate(request))
    with torch.no_grad():
        probs = (live.hf(torch.tensor([list(PROMPT)])).logits[0, -1] / 2.0).double().softmax(-1).numpy()
    order = np.argsort(-probs)
    before = np.cumsum(probs[order]) - probs[order]
    allowed = set(order[(before <= top_p) & ((np.arange(len(order)) < top_k) | (top_k == -1))].tolist())
    assert 0 < len(allowed) < len(probs)
    assert {c.token_ids[0] for c in completions} == allowed
    if top_k == 1:  # greedy to SGLang, whose log-probs are then those at temperature 1
        return
    for completion in completions:
        assert completion.logprobs[0] == pytest.approx(np.log(probs[completion.token_ids[0]]), abs=1e-4)


@pytest.mark.parametrize("bucket_bytes", [20_000, 1 << 29])
@pytest.mark.parametrize("backend", ["value", "gloo"])
def test_new_weights_arrive_whole_under_their_version(live, backend, bucket_bytes):
    live.change_weights()
    live.version += 1
    names = [name for name, _ in live.weights()]
    sender = make_sender(SyncPlan("tensor", backend, bucket_bytes, "version", 0), [live.server.address], "cpu", 60.0)
    sender.connect()
    try:
        metrics = sender.send(iter(live.weights()), live.version, names)
    finally:
        sender.close()
    assert metrics["tensors"] == len(names)
    assert metrics["bytes"] == sum(tensor.numel() * 4 for _, tensor in live.weights())
    assert live.use(lambda client: client.versions()) == [live.version]
    assert_parity(live, live.generate())
    scores = live.use(lambda client: client.score(PROMPT, 0))  # a stale prefix cache would show here
    np.testing.assert_allclose(scores, live.logprobs(PROMPT), atol=FP32)


def test_a_missing_name_leaves_the_old_version(live):
    sender = make_sender(SyncPlan("tensor", "value", 1 << 29, "version", 0), [live.server.address], "cpu", 60.0)
    names = [name for name, _ in live.weights()]
    try:
        with pytest.raises(RunFailed, match=r"did not send lm_head\.weight"):
            sender.send(live.weights()[:-1], live.version + 1, names)
    finally:
        sender.close()
    assert live.use(lambda client: client.versions()) == [live.version]
    assert_parity(live, live.generate())


OWNER = """
import pickle, sys, time
from rlrun.backends.sglang.server import ServerProcess
plan, model_dir, log_dir = pickle.loads(bytes.fromhex(sys.argv[1]))
server = ServerProcess(plan.engines[1], plan, model_dir, log_dir)
server.start()
address = server.wait_ready(180)
print(server.pid, address.url, flush=True)
time.sleep(3600)
"""


def test_two_engines(live, make_plan, tmp_path):
    """A second engine, owned by another process: it samples what the first one sampled, shares the router and a gloo
    group with it, and is gone, with all its processes, when its owner is killed."""
    owner, pid, second = start_owner(live, make_plan(2, max_running_requests=256), tmp_path)
    router = RouterProcess(make_plan(2).router, str(tmp_path))
    try:
        both = [live.server.address, second]
        again = live.use(lambda c: c.generate(GenerateRequest(PROMPT, tuple(range(8)), 1.0, 12)), None, [second])
        assert [(c.token_ids, c.logprobs) for c in again] == [(c.token_ids, c.logprobs) for c in live.first]
        publish_to_both(live, both)
        router.start(both)
        url = router.wait_ready(60)
        through_router = live.use(lambda c: c.generate(GenerateRequest(PROMPT, tuple(range(16)), 1.0, 12)), url, both)
        assert_parity(live, through_router)
        assert [c.token_ids for c in through_router] == [c.token_ids for c in live.generate(seeds=tuple(range(16)))]
        assert served(live.server.log_path, tmp_path / "engine_1.log")

        members = group(pid)
        assert len(members) >= 3, "leader, scheduler, detokenizer"
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        end = time.monotonic() + 20
        while any(psutil.pid_exists(member) and not is_zombie(member) for member in members):
            assert time.monotonic() < end, f"left behind: {members}"
            time.sleep(0.05)
        after = live.use(lambda c: c.generate(GenerateRequest(PROMPT, tuple(range(16)), 1.0, 12)), url, both)
        assert [c.token_ids for c in after] == [c.token_ids for c in through_router]
    finally:
        router.stop()
        owner.kill()
        owner.wait()


def start_owner(live: Live, plan, tmp_path: Path) -> tuple[subprocess.Popen, int, EngineAddress]:
    import pickle

    slim = plan.__class__(**{**plan.__dict__, "train": None})  # the stand-in for TrainPlan lives in conftest
    argument = pickle.dumps((slim, live.model_dir, str(tmp_path))).hex()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, argument], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    line = owner.stdout.readline().split()
    assert line, (tmp_path / "engine_1.log").read_text()[-3000:]
    return owner, int(line[0]), EngineAddress(1, line[1], 1)


def publish_to_both(live: Live, engines: list[EngineAddress]) -> None:
    live.change_weights()
    live.version += 1
    sender = make_sender(SyncPlan("distributed", "gloo", 50_000, "version", 0), engines, "cpu", 60.0)
    sender.connect()
    try:
        sender.send(live.weights(), live.version, [name for name, _ in live.weights()])
    finally:
        sender.close()
    assert live.use(lambda client: client.versions(), None, engines) == [live.version] * 2


def served(*logs: Path) -> bool:
    return all("Prefill batch" in log.read_text() for log in logs)


def group(pid: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pid:
                found.append(process.pid)
        except ProcessLookupError:
            pass
    return found


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def post(live: Live, path: str, body: dict) -> bytes:
    request = urllib.request.Request(
        live.server.address.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()
