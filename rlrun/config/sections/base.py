"""What all sections share: strict types, no unknown keys, and the bounds that fields use."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
NotEmpty = Annotated[str, Field(pattern=r"\S")]
IMPORT_PATH = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
ImportPath = Annotated[str, Field(pattern=rf"^{IMPORT_PATH}$")]

NOT_SEMANTIC: dict[str, Any] = {"semantic": False}
"""Marks fields that do not change what is learned; they stay out of the config hash."""

SEMANTIC: dict[str, Any] = {"semantic": True}
"""Marks fields of a section that is NOT_SEMANTIC which do change it, when they are away from their default."""


def one_of_ours_or_a_path(*names: str) -> str:
    """Pattern of a name that rlrun knows, or the import path of a function of the user's own."""
    return rf"^({'|'.join(names)}|{IMPORT_PATH})$"


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


class OpenSection(Section):
    """A section that takes, beside its own keys, any argument of an engine's pinned version and nothing else: see
    `rlrun.config.arguments`."""

    model_config = ConfigDict(extra="allow")

    engine: ClassVar[str]
    """sglang or megatron."""

    @property
    def engine_arguments(self) -> dict[str, Any]:
        """Those arguments that were written."""
        return self.model_extra or {}


def plain(value: Any) -> Any:
    """A value as it would be written in YAML: groups of keys, alone or in lists and mappings, as mappings of what is
    set away from its default."""
    if isinstance(value, Section):
        return {name: plain(item) for name, item in value if item != type(value).model_fields[name].default}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value
