"""Which entries are meant: a value that stands in the audit as it was asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

PENDING, PUBLISHED = "PENDING", "PUBLISHED"
RETRYING, PARKED, FAILED, DISCARDED, REPLAYING = EXCEPTIONS = (
    "RETRYING",
    "PARKED",
    "FAILED",
    "DISCARDED",
    "REPLAYING",
)
STATUSES = (PENDING, PUBLISHED, *EXCEPTIONS)


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries that satisfy all that is said here: `since` is included in the time, `until` is not."""

    positions: tuple[int, ...] | None = None
    topic: str | None = None
    key: str | None = None
    type: str | None = None
    statuses: tuple[str, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None

    def parameters(self) -> dict[str, Any]:
        """Each as the SQL of `store` names it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
        return values | lists

    def as_json(self) -> dict[str, Any]:
        """What was said, and no more."""
        said = {name: value for name, value in self.parameters().items() if value is not None}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in said.items()}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "Selection":
        values = {field.name: said.get(field.name) for field in fields(cls)}
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
            elif name in ("since", "until") and value is not None:
                values[name] = datetime.fromisoformat(value)
        return cls(**values)

    def covers(self, position: int, topic: str, key: str, type_: str, created_at: datetime) -> bool:
        """Whether an entry is meant, whatever its status was then."""
        return (
            (self.positions is None or position in self.positions)
            and self.topic in (None, topic)
            and self.key in (None, key)
            and self.type in (None, type_)
            and (self.since is None or created_at >= self.since)
            and (self.until is None or created_at < self.until)
        )
