"""What a rule may look at: the configuration, who set each key, the model's shape and the rows of the data."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass, field
from typing import Any

from rlrun.config.keys import find_key
from rlrun.config.origin import Origins
from rlrun.config.partial import Partial, Unreadable
from rlrun.config.schema import RunConfig
from rlrun.config.sections.base import plain
from rlrun.config.sections.model import ArchitectureConfig
from rlrun.errors import Problem, RlrunError
from rlrun.families import fields_of
from rlrun.plan.dataset import Scan, scan
from rlrun.plan.groups import Group, server_groups
from rlrun.plan.model_spec import make_spec, read_architecture, spec_from_directory
from rlrun.plan.types import ModelSpec

SFT = "sft"
"""The value of `algo.loss` with which given responses are learned."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class DatasetKeys:
    """The fields of a row that are read; None when the algorithm has no use for one."""

    prompt: str
    label: str | None
    response: str | None


def dataset_keys(config: RunConfig | Partial, name: str) -> DatasetKeys:
    """Of `data.train` or `data.eval`: supervised learning reads a response where a reward function reads a label."""
    dataset = getattr(config.data, name)
    try:
        learns_responses = supervised(config.algo)
    except Unreadable:  # the prompts can be judged without it
        return DatasetKeys(dataset.prompt_key, None, None)
    if learns_responses:
        return DatasetKeys(dataset.prompt_key, None, dataset.response_key if name == "train" else None)
    return DatasetKeys(dataset.prompt_key, dataset.label_key, None)


def supervised(algo: Any) -> bool:
    """Whether given responses are learned, rather than rewarded ones."""
    return algo.loss == SFT


@dataclass
class Context:
    config: RunConfig | Partial
    origins: Origins
    _scans: dict[str, Scan] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """The value at a dotted key, also of an argument of an engine. Raises Unreadable when it, or a group around it,
        is wrong or null."""
        node: Any = self.config
        for name in key.split("."):
            if node is None:
                raise Unreadable(key)
            if isinstance(node, list | tuple):
                node = node[int(name)]
            elif isinstance(node, dict):
                if name not in node:
                    raise Unreadable(key)
                node = node[name]
            else:
                try:
                    node = getattr(node, name)
                except AttributeError:  # an argument that nobody has set
                    return self.default(key)
        return node

    def default(self, key: str) -> Any:
        """The value that a key has when nobody sets it."""
        known = find_key(key)
        assert known is not None, key
        return known.default

    def changed(self, key: str) -> bool:
        """Whether a key has another value than its default."""
        return self.value(key) != self.default(key)

    def problem(self, code: str, summary: str, *keys: str, hint: str) -> Problem:
        """A problem that shows these keys, their values and who set them."""
        return Problem(code, summary, tuple(self.origins.where(key, plain(self.value(key))) for key in keys), hint)

    @functools.cached_property
    def model_dir(self) -> str | None:
        """Local folder of the model; None when it is random or on the Hub."""
        model = self.config.model
        if model.init == "random" or model.path is None:
            return None
        return local_path(model.path)

    @functools.cached_property
    def critic_dir(self) -> str | None:
        """Folder of the checkpoint that a critic starts from; None when that is the policy's."""
        path = self.config.critic.path
        return None if path is None else absolute(path)

    @functools.cached_property
    def expected(self) -> dict[str, Any]:
        """`model.architecture` as a mapping."""
        architecture = self.config.model.architecture
        return {name: getattr(architecture, name) for name in ArchitectureConfig.model_fields}

    @functools.cached_property
    def spec(self) -> ModelSpec:
        """The model that would be trained. Raises Unreadable when its config.json cannot be used."""
        family = self.config.model.family
        values = self.expected if self.model_dir is None else self.found
        for name in fields_of(family):
            if values[name] is None:  # rules/model.py says so
                raise Unreadable(f"model.architecture.{name}")
        return make_spec(family, values)

    @functools.cached_property
    def found(self) -> dict[str, Any]:
        """The architecture in the checkpoint's config.json. Raises Unreadable when that cannot be used."""
        assert self.model_dir is not None
        try:
            return read_architecture(self.model_dir, self.config.model.family)
        except RlrunError as e:
            raise Unreadable("model.path") from e

    @functools.cached_property
    def reference(self) -> ModelSpec:
        """The model at `algo.reference_path`. Raises Unreadable when its config.json cannot be used."""
        return self._spec_at("algo.reference_path")

    @functools.cached_property
    def teacher(self) -> ModelSpec:
        """The model at `algo.teacher_path`. Raises Unreadable when its config.json cannot be used."""
        return self._spec_at("algo.teacher_path")

    def _spec_at(self, key: str) -> ModelSpec:
        try:
            return spec_from_directory(absolute(self.value(key)), self.config.model.family)
        except RlrunError as e:
            raise Unreadable(key) from e

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """The server groups with every size decided."""
        return server_groups(self.config.placement, self.config.rollout.models)

    def rows(self, name: str) -> Scan | None:
        """The rows of `data.train` or `data.eval`; None when there is no such data set. Read once."""
        dataset = getattr(self.config.data, name)
        if dataset is None:
            return None
        if name not in self._scans:
            path = absolute(dataset.path)
            keys = dataset_keys(self.config, name)
            self._scans[name] = scan(path, keys.prompt, keys.label, self._alphabet(), keys.response)
        return self._scans[name]

    def _alphabet(self) -> str | None:
        try:
            model = self.config.model
            return model.alphabet if model.init == "random" else None
        except Unreadable:  # the rows can be judged without it
            return None


def local_path(path: str) -> str | None:
    """The folder that `model.path` means; None when it is the id of a model on the Hub."""
    expanded = os.path.expanduser(path)
    is_hub_id = _HUB_ID.fullmatch(path) is not None and not os.path.isdir(expanded)
    return None if is_hub_id else os.path.abspath(expanded)


def absolute(path: str) -> str:
    """A path from a configuration, relative to the working directory."""
    return os.path.abspath(os.path.expanduser(path))
