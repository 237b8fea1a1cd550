"""One real SGLang server on CPU gets weights by disk: whole checkpoints, and files of changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.backends.sglang.client import SglangClient
from rlrun.backends.sglang.cpu import install_torchvision_ops
from rlrun.backends.sglang.server import ServerProcess
from rlrun.errors import RunFailed
from rlrun.plan.types import SyncPlan
from rlrun.weight_sync.files import Files
from rlrun.weight_sync.senders import make_sender

pytestmark = pytest.mark.engines

START_S = 180.0
TOKENS = [1, 4, 13, 5, 1, *range(3, 20)]
FP32 = 1e-4


class Live:
    """One engine, and a Hugging Face model that should have the same weights."""

    def __init__(self, plan, server: ServerProcess, model_dir: str):
        install_torchvision_ops()
        from transformers import AutoModelForCausalLM

        self.plan, self.server, self.model_dir = plan, server, model_dir
        self.hf = AutoModelForCausalLM.from_pretrained(model_dir)
        self.version = 0

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, parameter.detach()) for name, parameter in self.hf.named_parameters()]

    def change(self, only: str = "") -> None:
        generator = torch.Generator().manual_seed(self.version)
        for name, tensor in self.weights():
            if only in name:
                noise = torch.randn(tensor.shape, generator=generator)
                few = torch.rand(tensor.shape, generator=generator) < 0.2
                tensor.add_(few * 0.3 * (tensor.std(correction=0) * noise + 0.1))

    def _use(self, call):
        async def main():
            client = SglangClient([self.server.address], None, self.plan.rollout)
            try:
                return await call(client)
            finally:
                await client.close()

        return asyncio.run(main())

    def scores(self) -> np.ndarray:
        return np.array(self._use(lambda client: client.score(TOKENS, 0)))

    def served_version(self) -> int:
        return self._use(lambda client: client.versions())[0]

    def expected(self) -> np.ndarray:
        with torch.no_grad():
            table = self.hf(torch.tensor([TOKENS])).logits[0].log_softmax(-1)[:-1]
        return table.gather(1, torch.tensor(TOKENS[1:]).unsqueeze(1)).squeeze(1).numpy()

    def assert_serves_its_weights(self) -> None:
        assert self.served_version() == self.version
        np.testing.assert_allclose(self.scores(), self.expected(), atol=FP32)

    def send(self, sender) -> dict[str, float]:
        self.version += 1
        return sender.send(iter(self.weights()), self.version, [name for name, _ in self.weights()])


@pytest.fixture(scope="module")
def live(make_plan, make_model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("by_disk")
    plan = make_plan(tp=2)
    model_dir = make_model(str(directory / "model"), plan)
    server = ServerProcess(plan.engines[0], plan, model_dir, str(directory / "logs"))
    server.start()
    try:
        engine = Live(plan, server, model_dir)
        server.wait_ready(START_S)
        engine.assert_serves_its_weights()
        yield engine
    finally:
        server.stop()


@pytest.fixture
def connect(live, tmp_path):
    opened = []

    def make(backend: str):
        from rlrun.backends.megatron.hf_writer import write_hf

        def write(named: Iterable[tuple[str, torch.Tensor]], target: str) -> None:
            write_hf(named, live.plan.model.spec, torch.float32, live.model_dir, target, replace=True)

        plan = SyncPlan(backend, backend, 1 << 16, "version", 0)
        files = Files(str(tmp_path / "weights"), write)
        opened.append(make_sender(plan, [live.server.address], "cpu", 120.0, files))
        opened[-1].connect()
        return opened[-1]

    yield make
    for sender in opened:
        sender.close()


def test_whole_checkpoints_arrive(live, connect):
    sender = connect("disk")
    for _ in range(2):
        before = live.scores()
        live.change()
        live.send(sender)
        live.assert_serves_its_weights()
        assert np.abs(live.scores() - before).max() > 0.01


def test_changes_arrive(live, connect):
    """A full update, changes everywhere, in parts of fused weights alone, and nowhere."""
    sender = connect("delta")
    full = live.send(sender)
    live.assert_serves_its_weights()
    for only in ("", "k_proj", "up_proj", "embed"):
        before = live.scores()
        live.change(only)
        metrics = live.send(sender)
        assert metrics["full_updates"] == 0
        assert metrics["bytes"] < full["bytes"]
        live.assert_serves_its_weights()
        assert np.abs(live.scores() - before).max() > 1e-3
    before = live.scores()
    live.send(sender)
    live.assert_serves_its_weights()
    np.testing.assert_array_equal(live.scores(), before)


def damage(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 4
    Path(path).write_bytes(data)


def test_a_damaged_file_is_refused_with_nothing_applied(live, connect, monkeypatch):
    sender = connect("delta")
    live.send(sender)
    before, version = live.scores(), live.version
    post = sender._post_file
    monkeypatch.setattr(sender, "_post_file", lambda path, *rest: (damage(path), post(path, *rest))[1])
    live.change()
    with pytest.raises(RunFailed, match=r"engine 0: /update_weights_from_tensor failed.*the update is refused"):
        live.send(sender)
    assert live.served_version() == version
    np.testing.assert_array_equal(live.scores(), before)
    # What was refused is followed by all weights, as the engine has missed a version by now.
    monkeypatch.setattr(sender, "_post_file", post)
    live.change()
    assert live.send(sender)["full_updates"] == 1
    live.assert_serves_its_weights()


def test_an_engine_with_other_weights_than_the_sender_thinks_gets_all(live, connect):
    """Another sender has moved it on meanwhile."""
    first = connect("delta")
    live.send(first)
    second = connect("delta")
    live.send(second)
    os.makedirs(first.files.folder, exist_ok=True)
    live.change()
    assert live.send(first)["full_updates"] == 1
    live.assert_serves_its_weights()
    live.change()
    assert live.send(first)["full_updates"] == 0
    live.assert_serves_its_weights()
