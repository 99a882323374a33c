"""The declaration of settings, and their description for the docs, `config show` and the JSON Schema."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeGuard, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core.core_schema import no_info_after_validator_function

Seconds = Annotated[float, Field(gt=0, le=86400)]
Port = Annotated[int, Field(ge=0, le=65535)]
NAMED = "NAME"
"""The place of a name of the user's own, in the name of a setting: `relay.sources.NAME.database_url`."""


class InvalidSetting(ValueError):
    """A value that a setting cannot have, and what to do about it. The words show no part of the value."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


class Section(BaseModel):
    """A section of ferryman.toml: frozen, and without names that are not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class TextLike:
    """An annotation of a text that matches all of a pattern. `words` say in an error what is allowed."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^({self.pattern})$"}

    def _check(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise InvalidSetting(self.words)
        return text


def setting(default: Any, text: str, *, unit: str = "", danger: str = "", **limits: Any) -> Any:
    """Declare a field with its description, its unit, its danger and its limits."""
    extra: dict[str, Any] = {key: value for key, value in (("unit", unit), ("danger", danger)) if value}
    if is_section(default):
        return Field(default_factory=default, description=text, **limits)
    return Field(default, description=text, json_schema_extra=extra or None, **limits)


@dataclass(frozen=True, slots=True)
class Described:
    """One setting as the docs and `config show` print it."""

    name: str
    text: str
    default: Any
    unit: str
    danger: str


def describe(model: type[BaseModel], prefix: str = "") -> Iterator[Described]:
    """Describe every setting of a model, in the order of its fields."""
    for name, field in model.model_fields.items():
        kind, args = field.annotation, get_args(field.annotation)
        if is_section(kind):
            yield from describe(kind, f"{prefix}{name}.")
        elif len(args) == 2 and is_section(args[1]):
            yield from describe(args[1], f"{prefix}{name}.{NAMED}.")
        else:
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            yield Described(
                name=prefix + name,
                text=field.description or "",
                default=None if field.is_required() else field.get_default(),
                unit=str(extra.get("unit", "")),
                danger=str(extra.get("danger", "")),
            )


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each setting in nested tables."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def is_section(kind: Any) -> TypeGuard[type[BaseModel]]:
    """Return True if a field of this type is a section, and not a plain value."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)
