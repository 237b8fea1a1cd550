from __future__ import annotations

from typing import get_args

import pytest

from rlrun.config.keys import all_keys, find_key, nearest_key, section_of
from rlrun.config.schema import RunConfig
from rlrun.config.sections.base import Section


def sections(section: type[Section]) -> list[type[Section]]:
    inner = [section_of(f.annotation) for f in section.model_fields.values()]
    return [section, *(s for i in inner if i is not None for s in sections(i))]


def test_every_leaf_of_the_schema_is_a_key_with_documentation_and_words_for_its_type():
    number_of_fields = sum(len(s.model_fields) for s in sections(RunConfig))
    assert len(all_keys()) == number_of_fields
    for key in all_keys().values():
        assert key.expected
        if key.section is None:
            assert key.doc.endswith((".", ".)")), f"{key.path} has no documentation"


def test_a_default_section_has_the_defaults_of_its_class():
    """`all_keys` takes a leaf's default from its class, so no section may be given another by its parent."""
    for key in all_keys().values():
        if key.section is not None and not key.required and key.default is not None:
            assert key.default == key.section()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("algo.group_size", "a whole number, at least 1"),
        ("algo.clip_low", "a number, above 0 and at most 1"),
        ("algo.loss", "a text, one of ppo_clip, gspo, cispo, sft, or a function such as package.module:name"),
        ("rollout.port", "a whole number, at least 1024 and at most 65535 or null"),
        ("rollout.stop", "a list of texts"),
        ("algo.normalize_by_std", "true or false"),
        ("algo.lr_schedule", "one of constant, linear, cosine"),
        ("reward.function", "a text, such as package.module:name"),
        ("reward.arguments", "a mapping of names to values"),
        ("data.eval", "a group of keys or null"),
    ],
)
def test_types_are_told_in_words(path, words):
    assert all_keys()[path].expected == words


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("algo.clip_hi", "algo.clip_high"),
        ("algo.groupsize", "algo.group_size"),
        ("trainer.tp", "placement.trainer.tp"),
        ("num_step", "num_steps"),
        ("algo.learning_rate", "algo.lr"),
        ("rollout.n_samples_per_prompt", "algo.group_size"),
        ("zzz", None),
    ],
)
def test_the_nearest_key_anywhere_in_the_schema(typed, meant):
    assert nearest_key(typed) == meant


def test_names_of_other_frameworks_lead_to_keys_that_exist():
    from rlrun.config.keys import _OTHER_NAMES

    assert set(_OTHER_NAMES.values()) <= set(all_keys())


def test_keys_below_an_open_mapping_are_allowed_and_no_others():
    assert find_key("reward.arguments.weight").path == "reward.arguments"
    assert find_key("algo.lr.x") is None
    assert find_key("algo.x") is None


def test_labels_and_deadlines_stay_out_of_the_hash_and_the_algorithm_does_not():
    out = ("name", "algo.name", "placement.trainer.tp", "rollout.port", "timeouts.start_s", "rollout.sglang.log_level")
    assert not any(all_keys()[path].semantic for path in out)
    assert all(
        all_keys()[path].semantic for path in ("algo.lr", "seed", "model.dtype", "rollout.seeded", "reward.arguments")
    )


def test_literals_are_words_that_the_command_line_can_write():
    for section in sections(RunConfig):
        for field in section.model_fields.values():
            for argument in get_args(field.annotation):
                assert not isinstance(argument, str) or argument.replace("_", "").isalnum()
