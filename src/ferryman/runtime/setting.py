"""What every setting is made with: its text, its unit, its danger, its limits."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


def setting(default: Any, text: str, *, unit: str = "", danger: str = "", **limits: Any) -> Any:
    """A field that explains itself: the docs, `config show` and the JSON Schema are made from it."""
    extra: dict[str, Any] = {key: value for key, value in (("unit", unit), ("danger", danger)) if value}
    if isinstance(default, type) and issubclass(default, BaseModel):
        return Field(default_factory=default, description=text, **limits)
    return Field(default, description=text, json_schema_extra=extra or None, **limits)


Seconds = Annotated[float, Field(gt=0, le=86400)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
