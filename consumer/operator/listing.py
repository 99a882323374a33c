"""What is unusual: rejected records, and receipts of what never took effect or is to come once more; newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ferryman.consumer.store import listing as store
from ferryman.consumer.store import standing
from ferryman.consumer.store.listing import Cursor, Listed
from ferryman.runtime.desk import Desk
from ferryman.runtime.errors import FerrymanError

STATUSES = ("REJECTED", "RECEIVED", "REOPENED", "REQUEUED", "DISCARDED")
UNSETTLED = ("REJECTED", "RECEIVED", "REOPENED")


@dataclass(frozen=True, slots=True)
class Filter:
    """What to list: `since` is included in the time, `until` is not."""

    consumer: str | None = None
    statuses: tuple[str, ...] = UNSETTLED
    code: str | None = None
    topic: str | None = None
    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def parameters(self, consumers: Sequence[str]) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("code", "topic", "type", "since", "until")}
        return {**named, "consumers": list(consumers), "statuses": list(self.statuses)}


@dataclass(frozen=True, slots=True)
class Page:
    """`next` is where to go on, None when there is no more."""

    messages: Sequence[Listed]
    next: Cursor | None


def page(desk: Desk, wanted: Filter, *, before: Cursor | None, limit: int) -> Page:
    with desk.acting() as connection:
        standing.prepare(connection)
        consumers = known(standing.consumers(connection), wanted.consumer)
        found = store.unusual(connection, wanted.parameters(consumers), before, limit + 1)
    return Page(found[:limit], found[limit - 1].cursor if len(found) > limit else None)


def known(there: Sequence[str], named: str | None) -> list[str]:
    """The consumer that is named, or all that this database knows of."""
    if named is None:
        return list(there)
    if named not in there:
        others = f"those that this database knows: {', '.join(there)}" if there else "no consumer ran on this database"
        raise FerrymanError(f"there is no consumer {named} here", remedy=f"correct the name, or the database; {others}")
    return [named]
