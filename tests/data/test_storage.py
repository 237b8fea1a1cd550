from __future__ import annotations

from dataclasses import asdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlrun.data.storage import load_groups, save_groups
from rlrun.data.types import FINISH_REASONS, Group, Prompt, Sample

floats = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def samples(draw):
    n = draw(st.integers(1, 6))
    return Sample(
        prompt_id=draw(st.integers(0, 9)),
        rollout_id=draw(st.integers(0, 9)),
        tokens=np.array(draw(st.lists(st.integers(0, 2**40), min_size=n, max_size=n)), np.int64),
        prompt_length=draw(st.integers(1, n)),
        loss_mask=np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), np.int8),
        rollout_logprobs=np.array(draw(st.lists(st.floats(-50, 0, width=32), min_size=n, max_size=n)), np.float32),
        finish_reason=draw(st.sampled_from(FINISH_REASONS)),
        policy_version=draw(st.integers(0, 99)),
        response_text=draw(st.text(max_size=5)),
        reward=draw(floats),
        metrics=draw(st.dictionaries(st.text(max_size=3), floats, max_size=2)),
        removed=draw(st.booleans()),
    )


prompts = st.builds(
    Prompt,
    st.integers(0, 9),
    st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=5)}), max_size=2).map(tuple),
    st.lists(st.integers(0, 2**17), max_size=4).map(tuple),
    st.none() | st.text(max_size=3) | st.integers(),
)
groups = st.lists(st.builds(Group, prompts, st.lists(samples(), max_size=3)), max_size=3)


@given(groups)
def test_groups_come_back_equal_bit_for_bit(tmp_path_factory, groups):
    path = str(tmp_path_factory.mktemp("buffer") / "buffer.npz")
    save_groups(path, groups)
    loaded = load_groups(path)
    assert [g.prompt for g in loaded] == [g.prompt for g in groups]
    for ours, theirs in zip(loaded, groups, strict=True):
        for a, b in zip(ours.samples, theirs.samples, strict=True):
            left, right = asdict(a), asdict(b)
            for name in ("tokens", "loss_mask", "rollout_logprobs"):
                x, y = left.pop(name), right.pop(name)
                assert x.dtype == y.dtype
                assert np.array_equal(x, y)
            assert left == right
