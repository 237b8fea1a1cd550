from __future__ import annotations

import torch
from torch import nn

from rlrun.backends.sglang.derived import refresh_copies


class Gate(nn.Module):
    """A router as SGLang has it: the copy is made at the first forward pass."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).bfloat16())
        self.register_buffer("_weight_fp32", None, persistent=False)

    def use(self) -> None:
        if self._weight_fp32 is None:
            self._weight_fp32 = self.weight.data.to(torch.float32)


def test_copies_follow_their_weights_in_place():
    model = nn.ModuleDict({"used": Gate(), "unused": Gate(), "norm": nn.LayerNorm(3)})
    used = model["used"]
    used.use()
    address = used._weight_fp32.data_ptr()
    with torch.no_grad():
        used.weight.copy_(torch.randn(4, 3))
    assert not torch.equal(used._weight_fp32, used.weight.float())
    assert refresh_copies(model) == 1
    assert torch.equal(used._weight_fp32, used.weight.float())
    assert used._weight_fp32.data_ptr() == address, "CUDA graphs would read the old one"
    assert model["unused"]._weight_fp32 is None


def test_a_copy_that_is_the_weight_itself_stays_so():
    gate = Gate()
    gate.weight.data = gate.weight.data.float()
    gate.use()
    assert gate._weight_fp32.data_ptr() == gate.weight.data_ptr()
    before = gate.weight.detach().clone()
    assert refresh_copies(gate) == 1
    assert torch.equal(gate.weight, before)
