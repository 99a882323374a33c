"""Messages that need attention (rejected, never handled, or requeued): selected and listed; statistics of consumers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ferryman.consumer.store import consumers as store
from ferryman.consumer.store import lookup
from ferryman.consumer.store.lookup import Cursor
from ferryman.consumer.store.rejected import Place, places_of, written
from ferryman.runtime.desk import Connection, Desk, Row, Selection, read_paused
from ferryman.runtime.errors import FerrymanError

STATUSES = ("REJECTED", "RECEIVED", "REOPENED", "REQUEUED", "DISCARDED")
REJECTED, RECEIVED, REOPENED, REQUEUED, DISCARDED = STATUSES
UNSETTLED = (REJECTED, RECEIVED, REOPENED)
COUNTED = 20_000
"""The most receipts that are counted; beyond, the number is an estimate."""


@dataclass(frozen=True, slots=True)
class MessageFilter(Selection):
    """The messages to list, of one consumer or of all."""

    consumer: str | None = None
    statuses: tuple[str, ...] = UNSETTLED
    code: str | None = None


@dataclass(frozen=True, slots=True)
class SelectedMessages(Selection):
    """The rejected records of one consumer that match all criteria; a record matches by its id or by its place."""

    consumer: str = ""
    ids: tuple[UUID, ...] = ()
    places: tuple[Place, ...] = ()
    codes: tuple[str, ...] | None = None

    @property
    def named(self) -> bool:
        """True if messages are selected by id or place."""
        return bool(self.ids or self.places)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the statements in `store.rejected`."""
        ids = list(self.ids) if self.named else None
        return {**Selection.parameters(self), **places_of(self.places), "ids": ids}

    def as_json(self) -> dict[str, Any]:
        """Return the criteria that were given."""
        names = {"ids": [str(each) for each in self.ids], "places": [written(each) for each in self.places]}
        return {name: value for name, value in (Selection.as_json(self) | names).items() if value}


@dataclass(frozen=True, slots=True)
class MessagePage:
    """One page. `next` is the cursor of the next page, or None if this is the last."""

    messages: Sequence[Row]
    next: Cursor | None


def page(desk: Desk, wanted: MessageFilter, *, before: Cursor | None, limit: int) -> MessagePage:
    with desk.reading() as connection:
        consumers = known_consumers(connection, wanted.consumer)
        found = lookup.unusual(connection, {**wanted.parameters(), "consumers": consumers}, before, limit + 1)
    return MessagePage(found[:limit], lookup.cursor_of(found[limit - 1]) if len(found) > limit else None)


def known_consumers(connection: Connection, named: str | None) -> list[str]:
    """Return the consumer that is named, or all that this database knows. Refuse a name that it does not know."""
    there = store.consumers(connection)
    if named is None:
        return there
    if named not in there:
        others = f"this database knows: {', '.join(there)}" if there else "no consumer has run on this database"
        raise FerrymanError(f"there is no consumer {named} here", remedy=f"correct the name, or the database; {others}")
    return [named]


def statistics(connection: Connection, consumer: str | None) -> list[dict[str, Any]]:
    """Return the statistics of each consumer, as `ferryman inbox stats` prints them."""
    names = known_consumers(connection, consumer)
    unusual, partitions = store.unusual(connection), store.partitions(connection)
    paused = {each["name"]: each for each in read_paused(connection, "consumer")}
    processes, waiting = store.processes(connection, names), store.waiting(connection)
    return [
        {
            "consumer": name,
            "processes": processes[name],
            **_verdicts(connection, name, unusual.get(name, {})),
            "rejected_waiting": _rejected([each for each in waiting if each["consumer"] == name]),
            "partitions": _partitions(partitions.get(name), processes[name]),
            "paused": {key: paused[name][key] for key in ("since", "who", "reason")} if name in paused else None,
        }
        for name in names
    ]


def _verdicts(connection: Connection, name: str, unusual: dict[str, int]) -> dict[str, Any]:
    """Count the receipts by verdict, or estimate them by the planner and the proportions of the newest."""
    newest = store.newest(connection, name, COUNTED)
    estimated = newest["looked_at"] == COUNTED
    done, refused = newest["done"], newest["refused"]
    if estimated and done + refused:
        handled = max(store.estimate(connection, name) - sum(unusual.values()), done + refused)
        refused = round(handled * refused / (done + refused))
        done = handled - refused
    verdicts = {"DONE": done, "REFUSED": refused} | {status: unusual.get(status, 0) for status in UNSETTLED}
    return {"verdicts": verdicts, "estimated": estimated}


def _rejected(rows: list[Row]) -> dict[str, Any]:
    return {
        "messages": sum(each["waiting"] for each in rows),
        "oldest_age_seconds": max((each["oldest_age_seconds"] for each in rows), default=None),
        "by_code": {each["code"]: each["waiting"] for each in rows},
    }


def _partitions(row: Row | None, processes: int) -> dict[str, Any]:
    """Count the partitions. One marked as owned without a process is unclean: its owner was killed, or cut off."""
    owned, released = (row["owned"], row["released"]) if row else (0, 0)
    return {
        "owned": owned if processes else 0,
        "unclean": 0 if processes else owned,
        "released": released,
        "begun_again": (row["suspects"] if row else None) or [],
    }
