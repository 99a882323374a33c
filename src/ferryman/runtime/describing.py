"""Every setting, as the docs, `config show` and the JSON Schema tell of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from ferryman.runtime.redaction import is_secret
from ferryman.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Described:
    """One setting as the docs and `config show` print it."""

    name: str
    text: str
    default: Any
    unit: str
    danger: str
    secret: bool


def describe(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[Described]:
    """Every setting below a model, in the order of the file."""
    for name, field in model.model_fields.items():
        inner, named = section_of(field), table_of(field)
        if inner is not None:
            yield from describe(inner, f"{prefix}{name}.")
        elif named is not None:
            yield from describe(named, f"{prefix}{name}.NAME.")
        else:
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            yield Described(
                name=prefix + name,
                text=field.description or "",
                default=None if field.is_required() else field.get_default(),
                unit=str(extra.get("unit", "")),
                danger=str(extra.get("danger", "")),
                secret=is_secret(name) or SecretStr in (field.annotation, *get_args(field.annotation)),
            )


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model behind a field that is a section, None for a plain value."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model behind a field that is a table of sections by free names."""
    kinds = get_args(field.annotation)
    return kinds[1] if len(kinds) == 2 and isinstance(kinds[1], type) and issubclass(kinds[1], BaseModel) else None
