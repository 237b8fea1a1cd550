"""The vocabulary-parallel log-softmax against torch's, split over two ranks and cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.engines


def inputs(scale: float, vocab: int = 11, rows: int = 9):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(rows, 6, generator=generator)
    weight = torch.randn(vocab, 6, generator=generator) * scale
    targets = torch.randint(0, vocab, (rows,), generator=generator)
    targets[0], targets[1] = 0, vocab - 1
    return hidden, weight, targets


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("rows", [1024, 4, 1])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.7])
def test_log_probs_entropy_and_gradients_equal_torch(ranks, tp, scale, rows, entropy_coef):
    hidden, weight, targets = inputs(scale)
    hidden.requires_grad_()
    weight.requires_grad_()
    temperature, upstream = 0.6, torch.linspace(-1, 1, len(hidden))
    distribution = torch.distributions.Categorical(logits=hidden @ weight.T / temperature)
    expected = distribution.log_prob(targets)
    ((expected + entropy_coef * distribution.entropy()) * upstream).sum().backward()

    arrays = [t.detach().numpy() for t in (hidden, weight, targets, upstream)]
    results = ranks.run(tp, "logprobs_of", *arrays, temperature, rows, entropy_coef)
    for result in results:
        tolerance = 1e-5 * max(1.0, scale)
        np.testing.assert_allclose(result["logprobs"], expected.detach().numpy(), atol=tolerance)
        np.testing.assert_allclose(result["entropy"], distribution.entropy().detach().numpy(), atol=tolerance)
        np.testing.assert_allclose(result["hidden_grad"], hidden.grad.numpy(), atol=tolerance)
    weight_grad = np.concatenate([r["weight_grad"] for r in results])
    np.testing.assert_allclose(weight_grad[:11], weight.grad.numpy(), atol=1e-5)
    assert not weight_grad[11:].any(), "padding learned something"
