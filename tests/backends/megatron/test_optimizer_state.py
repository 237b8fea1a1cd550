"""The number of steps in a checkpoint of this version and of earlier ones."""

from __future__ import annotations

import pytest
import torch

from rlrun.backends.megatron.optimizer_state import saved_step

pytestmark = pytest.mark.engines

GROUP = {"lr": 1e-3, "wd_mult": 1.0}


@pytest.mark.parametrize(
    ("saved", "steps"),
    [
        ({"step": 3.0}, 3.0),
        ({"optimizer": {"param_groups": [GROUP | {"step": 3.0}]}, "param_state_sharding_type": "any"}, 3.0),
        ({"param_groups": [GROUP], "state": {"common_step": torch.tensor(3.0)}}, 3.0),
        ({"optimizer": {"param_groups": [GROUP], "state": {"common_step": torch.tensor(3.0)}}}, 3.0),
        ({"param_groups": [GROUP]}, 0.0),
    ],
    ids=["now", "distributed", "float32", "bfloat16", "before the first step"],
)
def test_the_number_of_steps_is_read_from_every_form(saved, steps):
    assert saved_step(saved) == steps


def test_two_optimizers_of_an_earlier_version_are_refused():
    two = {number: {"optimizer": {"param_groups": [GROUP | {"step": 3.0}]}} for number in (0, 1)}
    with pytest.raises(ValueError, match="a form that this version cannot read"):
        saved_step(two)
