"""What all sections share: strict types, no unknown keys, and the bounds that fields use."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
NotEmpty = Annotated[str, Field(pattern=r"\S")]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

NOT_SEMANTIC: dict[str, Any] = {"semantic": False}
"""Marks fields that do not change what is learned; they stay out of the config hash."""

SEMANTIC: dict[str, Any] = {"semantic": True}
"""Marks fields that do, in a section that does not."""


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
