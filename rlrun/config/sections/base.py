"""What all sections share: strict types, no unknown keys, and the bounds that fields use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
NotEmpty = Annotated[str, Field(pattern=r"\S")]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

NOT_SEMANTIC: dict[str, Any] = {"semantic": False}
"""Marks fields that do not change what is learned; they stay out of the config hash."""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


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
