"""`trainer.megatron`: arguments that are passed on reach Megatron's objects, and have their effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from megatron_plans import SPEC, make_plan

from rlrun.config.arguments.check import check_argument, matches, offered
from rlrun.config.arguments.megatron import ALWAYS, EXPERTS
from rlrun.config.arguments.table import table
from rlrun.config.origin import Origins

pytestmark = pytest.mark.engines

VALUES = {"moe_router_load_balancing_type": "sinkhorn"}
CAPACITY = ("moe_token_drop_policy", "moe_pad_expert_input_to_capacity")


def another(name: str) -> object:
    """A value of an argument that is not its default, where Megatron takes one."""
    argument = table("megatron").arguments[name]
    choices = [choice for choice in argument.choices if choice != argument.default]
    simple = {"bool": argument.default is not True, "int": 7, "float": 0.25}
    return VALUES.get(name, choices[-1] if choices else simple.get(argument.types[0]))


def train_plan(**arguments: object):
    return replace(make_plan().train, megatron=tuple(arguments.items()))


@pytest.mark.parametrize("name", [name for name in offered("megatron") if not matches(name, EXPERTS)])
def test_an_argument_reaches_every_object_that_has_it(name):
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig

    from rlrun.backends.megatron.arguments import passed_on
    from rlrun.backends.megatron.model import transformer_config

    value = another(name)
    assert value is not None
    assert check_argument("megatron", name, value, "trainer.megatron", Origins()) is None
    train = train_plan(**{name: value})
    objects = {
        "transformer": transformer_config(SPEC, train, torch.float32),
        "optimizer": OptimizerConfig(**passed_on(train, "optimizer")),
        "ddp": DistributedDataParallelConfig(**passed_on(train, "ddp")),
    }
    for label in table("megatron").arguments[name].objects:
        assert getattr(objects[label], name) == value


@pytest.mark.parametrize("name", [name for name in offered("megatron") if matches(name, EXPERTS)])
def test_an_argument_for_experts_is_taken_by_a_config_with_experts(name):
    from megatron.core.transformer.transformer_config import TransformerConfig

    from rlrun.backends.megatron.arguments import passed_on

    value = another(name)
    values = {"moe_expert_capacity_factor": 1.0} if name in CAPACITY else {}
    passed = passed_on(train_plan(**values, **{name: value}), "transformer")
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, num_moe_experts=4, add_bias_linear=False, **passed
    )
    assert getattr(config, name) == value


def test_what_rlrun_always_sets_reaches_the_config():
    from rlrun.backends.megatron.arguments import passed_on
    from rlrun.backends.megatron.model import transformer_config

    config = transformer_config(SPEC, train_plan(), torch.float32)
    assert {name: getattr(config, name) for name in passed_on(train_plan(), "transformer")} == ALWAYS


@pytest.fixture(scope="module")
def batches(checkpoints):
    import megatron_reference as hf

    return [hf.make_batch(checkpoints["tied"], seed) for seed in range(2)]


def trained(ranks, directory, batches, plan, **arguments) -> dict[str, np.ndarray]:
    plan = replace(plan, train=replace(plan.train, megatron=tuple(arguments.items())))
    [result] = ranks.run(1, "train", plan, directory, batches)
    return result["after"]


def test_arguments_take_effect_in_training_and_those_about_speed_change_nothing(ranks, checkpoints, batches):
    plan = make_plan(weight_decay=0.5, uses_reference=False)
    plain = trained(ranks, checkpoints["tied"], batches, plan)
    speed = {
        "deterministic_mode": False,
        "bias_activation_fusion": True,
        "bias_dropout_fusion": True,
        "bucket_size": 1000,
        "check_for_nan_in_grad": True,
        "clone_scatter_output_in_embedding": False,
    }
    same = trained(ranks, checkpoints["tied"], batches, plan, **speed)
    assert max(np.abs(same[name] - plain[name]).max() for name in plain) < 1e-5
    decayed = trained(ranks, checkpoints["tied"], batches, plan, apply_wd_to_qk_layernorm=True)
    differ = {name for name in plain if np.abs(decayed[name] - plain[name]).max() > 1e-4}
    norms = {name for name in plain if "q_norm" in name or "k_norm" in name}
    assert norms
    assert norms <= differ
