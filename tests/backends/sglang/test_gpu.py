"""Real SGLang servers on NVIDIA GPUs: one engine on each GPU, at most two; trainer rank 0 is this process, on GPU 0."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from rlrun.backends.base import Completion, GenerateRequest
from rlrun.backends.sglang.client import SglangClient
from rlrun.backends.sglang.server import ServerProcess
from rlrun.plan.types import ModelSpec, SyncPlan
from rlrun.weight_sync.canary import BF16_MEAN_DIFF, check_canary
from rlrun.weight_sync.senders import make_sender

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

SPEC = ModelSpec("qwen3", 256, 2, 4, 2, 64, 512, 32, 1e-6, 1e4, 512, False, 0)
PROMPT = (1, 4, 13, 5, 1)
START_S = 400.0


class Live:
    """The engines, and a Hugging Face model on GPU 0 that should always have the same weights."""

    def __init__(self, plan, first: int, model_dir: str, log_dir: str):
        from transformers import AutoModelForCausalLM

        self.plan = plan
        self.servers = [ServerProcess(engine, plan, model_dir, log_dir) for engine in plan.engines[first:]]
        self.hf = AutoModelForCausalLM.from_pretrained(model_dir).to("cuda:0")
        self.version = 0

    @property
    def addresses(self):
        return [server.address for server in self.servers]

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, parameter.detach()) for name, parameter in self.hf.named_parameters()]

    def logprobs(self, tokens, temperature: float = 1.0) -> np.ndarray:
        with torch.no_grad():
            logits = self.hf(torch.tensor([list(tokens)], device="cuda:0")).logits[0].float() / temperature
        table = logits.log_softmax(-1)[:-1].cpu()
        return table.gather(1, torch.tensor(list(tokens[1:])).unsqueeze(1)).squeeze(1).numpy()

    def use(self, call, engine: int = 0):
        async def main():
            client = SglangClient([self.addresses[engine]], None, self.plan.rollout)
            try:
                return await call(client)
            finally:
                await client.close()

        return asyncio.run(main())

    def generate(self, seeds=tuple(range(16)), engine: int = 0, temperature: float = 1.0) -> list[Completion]:
        return self.use(lambda client: client.generate(GenerateRequest(PROMPT, seeds, temperature, 24)), engine)

    def index(self, engine: int) -> int:
        return self.addresses[engine].index


@contextmanager
def running(make_plan, make_model, directory, backend: str, first: int):
    """Engines `first` and up, of one for each GPU."""
    plan = make_plan(
        min(2, torch.cuda.device_count()),
        device="cuda",
        backend=backend,
        attention_backend="triton",
        max_total_tokens=None,
        mem_fraction_static=0.2,
        spec=SPEC,
    )
    live = Live(plan, first, make_model(str(directory / "model"), plan), str(directory / "logs"))
    try:
        for server in live.servers:
            server.start()
        for server in live.servers:
            server.wait_ready(START_S)
        yield live
    finally:
        for server in live.servers:
            server.stop()


@pytest.fixture(scope="module")
def live(make_plan, make_model, tmp_path_factory):
    with running(make_plan, make_model, tmp_path_factory.mktemp("ipc"), "cuda_ipc", 0) as engines:
        yield engines


def assert_parity(live: Live, engine: int) -> None:
    differences = []
    for temperature in (1.0, 0.7):
        for completion in live.generate(engine=engine, temperature=temperature):
            expected = live.logprobs([*PROMPT, *completion.token_ids], temperature)[len(PROMPT) - 1 :]
            differences.extend(np.abs(np.array(completion.logprobs) - expected))
            assert completion.policy_version == live.version
    assert np.mean(differences) < BF16_MEAN_DIFF
    tokens = [*PROMPT, *range(3, 30)]
    scores = live.use(lambda client: client.score(tokens, live.index(engine)), engine)
    check_canary(live.logprobs(tokens), [scores], "bfloat16", live.version)


def test_logprobs_are_hugging_faces(live):
    for engine in range(len(live.servers)):
        assert_parity(live, engine)


def test_a_seed_gives_the_same_sample_in_any_batch(live):
    seeds = tuple(range(16))
    group = live.generate(seeds)

    async def crowded(client):
        others = [GenerateRequest((1, *range(3, 3 + n), 1), (900 + n,) * 4, 0.9, 16) for n in range(1, 15)]
        mine = GenerateRequest(PROMPT, seeds, 1.0, 24)
        return (await asyncio.gather(*map(client.generate, [*others[:7], mine, *others[7:]])))[7]

    for again in (live.use(crowded), [live.generate((seed,))[0] for seed in seeds]):
        assert [(c.token_ids, c.logprobs) for c in again] == [(c.token_ids, c.logprobs) for c in group]
    assert len({c.token_ids for c in group}) > 12


def change_weights(live: Live) -> None:
    generator = torch.Generator(device="cuda:0").manual_seed(live.version)
    for _, tensor in live.weights():
        noise = torch.randn(tensor.shape, generator=generator, device="cuda:0")
        tensor.add_((0.1 * tensor.float().std(correction=0) * noise + 0.001).to(tensor.dtype))
    live.version += 1


def publish(live: Live, backend: str, bucket_bytes: int) -> None:
    plan = SyncPlan("tensor", backend, bucket_bytes, "version", 0)
    sender = make_sender(plan, live.addresses, "cuda", 120.0)
    sender.connect()
    try:
        metrics = sender.send(iter(live.weights()), live.version, [name for name, _ in live.weights()])
    finally:
        sender.close()
    print(backend, bucket_bytes, metrics)
    assert metrics["tensors"] == len(live.weights())
    for engine in range(len(live.servers)):
        assert_parity(live, engine)


@pytest.mark.parametrize("bucket_bytes", [200_000, 1 << 29])
def test_weights_by_cuda_ipc_reach_the_engines_on_every_gpu(live, bucket_bytes):
    change_weights(live)
    publish(live, "cuda_ipc", bucket_bytes)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL refuses two ranks on one GPU")
def test_weights_by_nccl_reach_an_engine_on_another_gpu(make_plan, make_model, tmp_path):
    torch.cuda.set_device(0)
    with running(make_plan, make_model, tmp_path, "nccl", 1) as other:
        for bucket_bytes in (200_000, 1 << 29):
            change_weights(other)
            publish(other, "nccl", bucket_bytes)
