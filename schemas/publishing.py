"""Registering the catalogue's schemas: first what would happen, then all of it or nothing."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ferryman.schemas.catalogue import AVRO, Catalogue
from ferryman.schemas.registry import Registry

LEVEL = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class Published:
    """A type's schema at the registry: with its id, or with what stands against it, or neither yet."""

    type: str
    subject: str
    text: str
    id: int | None
    objections: Sequence[str] = ()
    new: bool = False

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "text"}

    def row(self) -> tuple[str, str, str, str]:
        if self.objections:
            return self.type, self.subject, "-", f"the registry objects: {'; '.join(self.objections)}"
        if self.id is None:
            return self.type, self.subject, "-", "is new"
        return self.type, self.subject, str(self.id), "registered" if self.new else "is there already"


def plan(catalogue: Catalogue, registry: Registry) -> list[Published]:
    """What is there, what is new, and what the registry objects to. Types in JSON need no registry."""
    found = []
    for kind in catalogue.types.values():
        if kind.content_type == AVRO:
            number = registry.lookup(kind.subject, kind.text)
            objections = registry.objections(kind.subject, kind.text) if number is None else ()
            found.append(Published(kind.name, kind.subject, kind.text, number, objections))
    return found


def publish(planned: Sequence[Published], registry: Registry) -> list[Published]:
    """Has the registry insist on what was promised, and registers what is new."""
    for each in planned:
        registry.insist(each.subject, LEVEL)
    return [
        replace(each, id=registry.register(each.subject, each.text), new=True) if each.id is None else each
        for each in planned
    ]
