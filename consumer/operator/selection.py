"""Which rejected records are meant: a value that stands in the audit as it was asked for."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from ferryman.consumer.store.acts import places_of

Place = tuple[str, int, int]
"""A topic, the number of a partition, and an offset."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Of one consumer, those that satisfy all that is said here; ids and places are alternatives of one another."""

    consumer: str = ""
    ids: tuple[UUID, ...] = ()
    places: tuple[Place, ...] = ()
    codes: tuple[str, ...] | None = None
    topic: str | None = None
    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def named(self) -> bool:
        return bool(self.ids or self.places)

    def parameters(self) -> dict[str, Any]:
        """Each as the SQL of `store` names it."""
        simple = {name: getattr(self, name) for name in ("consumer", "topic", "type", "since", "until")}
        return {
            **simple,
            **places_of(self.places),
            "ids": list(self.ids) if self.named else None,
            "codes": list(self.codes) if self.codes else None,
        }

    def as_json(self) -> dict[str, Any]:
        """What was said, and no more."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        forms = {
            "ids": [str(each) for each in self.ids],
            "places": [written(each) for each in self.places],
            "codes": list(self.codes or ()),
            "since": self.since and self.since.isoformat(),
            "until": self.until and self.until.isoformat(),
        }
        return {name: value for name, value in {**said, **forms}.items() if value}


def written(place: Place) -> str:
    """As a person writes it."""
    topic, partition, at = place
    return f"{topic}/{partition}/{at}"
