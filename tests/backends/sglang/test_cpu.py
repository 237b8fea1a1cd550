from __future__ import annotations

import pytest
import torch

from rlrun.backends.sglang.cpu import add_gated_experts, apply_rms_norms, as_text_model, sums_of_squares


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_norms_over_all_heads_are_torchs_however_many_ranks_share_them(ranks, dtype):
    torch.manual_seed(0)
    xs = [torch.randn(5, width).to(dtype) for width in (16, 8)]
    ws = [torch.randn(width).to(dtype) for width in (16, 8)]
    parts = [
        [(x.chunk(ranks, dim=-1)[r], w.chunk(ranks)[r]) for x, w in zip(xs, ws, strict=True)] for r in range(ranks)
    ]
    sums = sum(sums_of_squares(*(x for x, _ in part)) for part in parts)
    out = []
    for (q, w_q), (k, w_k) in parts:
        out.append(apply_rms_norms(q, k, w_q, w_k, torch.cat([sums, torch.zeros(2)]), ranks, 1e-6))  # SGLang pads
    for i, (x, w) in enumerate(zip(xs, ws, strict=True)):
        whole = torch.cat([part[i] for part in out], dim=-1)
        expected = torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), w.float(), eps=1e-6).to(dtype)
        assert whole.dtype == dtype
        torch.testing.assert_close(whole, expected)


def test_shared_experts_are_added_behind_their_gate():
    torch.manual_seed(0)
    hidden, shared, out = (torch.randn(5, 8) for _ in range(3))
    weight = torch.randn(8)
    expected = out + torch.sigmoid(hidden @ weight).unsqueeze(1) * shared
    add_gated_experts(hidden, weight, shared, out)
    torch.testing.assert_close(out, expected)


def test_a_model_is_text_whatever_the_command_line_says():
    assert as_text_model(1, path="m", enable_multimodal=None) == ((1,), {"path": "m", "enable_multimodal": False})
