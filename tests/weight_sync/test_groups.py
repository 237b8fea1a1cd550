from __future__ import annotations

import pytest

from rlrun.weight_sync.groups import apart, group_sizes, together

ATTENTION = "model.layers.3.self_attn."
PACKED = "model.language_model.layers.0.mlp.experts."


def test_the_two_latent_projections_of_a_layer_are_one_group():
    names = [f"{ATTENTION}{part}.weight" for part in ("q_a_proj", "kv_a_proj_with_mqa")]
    assert together(names[0]) == together(names[1]) is not None
    assert together(names[0]) != together(names[0].replace(".3.", ".4."))
    assert group_sizes([*names, "lm_head.weight"]) == {together(names[0]): 2}


def test_without_a_query_latent_a_group_has_one_member():
    assert list(group_sizes([f"{ATTENTION}kv_a_proj_with_mqa.weight"]).values()) == [1]


@pytest.mark.parametrize("part", ["q_a_layernorm", "q_b_proj", "kv_a_layernorm", "kv_b_proj", "q_proj", "o_proj"])
def test_other_weights_of_attention_travel_alone(part):
    assert together(f"{ATTENTION}{part}.weight") is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{PACKED}gate_up_proj", "packed experts"),
        (f"{PACKED}down_proj", "packed experts"),
        (f"{PACKED}17.down_proj.weight", "single experts"),
        ("mtp.layers.0.mlp.experts.3.up_proj.weight", "single experts"),
        ("model.layers.0.mlp.gate_up_proj.weight", None),  # GLM-4 stores its dense MLP so
        ("model.layers.0.mlp.shared_experts.down_proj.weight", None),
        ("model.layers.0.mlp.down_proj.weight", None),
    ],
)
def test_packed_and_single_experts_are_told_apart(name, kind):
    assert apart(name) == kind
