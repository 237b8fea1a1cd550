"""Hardware profiles: one file for each kind of GPU that a configuration can name."""

from __future__ import annotations

import dataclasses
from typing import get_args

from rlrun.config.sections.placement import PlacementConfig
from rlrun.plan.gpus import FOLDER, Gpu, profiles
from rlrun.plan.layout import GPUS


def test_the_schema_names_exactly_the_profiles():
    assert set(get_args(PlacementConfig.model_fields["gpu"].annotation)) == set(profiles()) == set(GPUS)


def test_every_profile_has_every_figure_and_says_where_it_is_from():
    for file in FOLDER.glob("*.yaml"):
        gpu = profiles()[file.stem]
        assert all(value > 0 for value in dataclasses.asdict(gpu).values()), file
        head = [line for line in file.read_text().splitlines() if line.startswith("#")]
        assert f"placement.gpu={file.stem}" in head[1]
        assert "datasheet" in head[2] or "Published figures" in head[2]


def test_speeds_are_in_plausible_order():
    """A GPU's own memory is faster than NVLink, NVLink faster than the network; its size is about that of its name."""
    for name, gpu in profiles().items():
        assert gpu.hbm > gpu.link(same_node=True) > gpu.link(same_node=False)
        size = int(name.rpartition("_")[2].removesuffix("gb"))
        assert 0.9 * size < gpu.memory_gib * 1.0 <= size
    assert profiles()["h100_80gb"] == Gpu(79.1, 989, 3.35, 450, 50, 50)
