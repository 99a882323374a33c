"""`ferryman audit`: what an audit counts and finds, where it reads, and how it ends if it cannot finish.

A case file goes through its databases in pages, each one statement and so one snapshot, and nothing joins across.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from hashlib import sha1
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from psycopg.errors import QueryCanceled

from ferryman.runtime.errors import Exit, FerrymanError, Misconfigured, Transient

CUT_SECONDS = 5.0
"""A window ends so long ago: until then, what is being recorded will have committed."""

MOST_SUSPECTS = 5_000


class AuditWindow(NamedTuple):
    """The time of the records that are audited: from one moment on, and before another."""

    since: datetime | None
    until: datetime


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that must not be, by its name; why, and what a person runs next."""

    what: str
    id: UUID | None
    """Its subject; None if it is of all of them."""
    why: str
    next: str


@dataclass(slots=True)
class AuditBooks:
    """The result of an audit. What is wrong is listed up to a limit, and counted whole."""

    window: AuditWindow
    counts: Counter[str] = field(default_factory=Counter)
    """The counts, by `stage.kind`."""
    sums: dict[str, Any] = field(default_factory=dict)
    """Dataclasses, by what they are of: a currency."""
    wrong: list[Wrong] = field(default_factory=list)
    wrongs: int = 0
    expired: Counter[str] = field(default_factory=Counter)
    """The number of things that nobody can tell any more, by kind."""
    oldest: datetime | None = None
    """When the oldest of those that are on their way was recorded."""
    most: int = 1_000

    def find(self, *found: Wrong) -> None:
        self.wrongs += len(found)
        self.wrong += found[: max(0, self.most - len(self.wrong))]

    def wait(self, since: datetime) -> None:
        """Count one that is on its way since then."""
        self.oldest = min(self.oldest or since, since)

    @property
    def verdict(self) -> str:
        return "wrong" if self.wrongs else "ok"

    def as_json(self) -> dict[str, Any]:
        counts: dict[str, dict[str, int]] = {}
        for name, count in sorted(self.counts.items()):
            stage, _, kind = name.partition(".")
            counts.setdefault(stage, {})[kind] = count
        return {
            "window": self.window._asdict(), "counts": counts, "in_flight": self.counts["requests.PENDING"],
            "oldest_in_flight": self.oldest,
            "sums": {name: asdict(each) for name, each in sorted(self.sums.items())},
            "wrong": [asdict(each) for each in self.wrong],
            "wrong_total": self.wrongs,
            "expired": [{"what": what, "count": count} for what, count in sorted(self.expired.items())],
            "verdict": self.verdict,
        }  # fmt: skip


Progress = Callable[[str, int, int], None]
"""Told what is gone through, how many were, and of about how many."""


class CaseAudit(Protocol):
    """The part of a case file that audits."""

    books: AuditBooks

    def run(self) -> AuditBooks: ...


class Suspects:
    """Subjects that look wrong. They are left alone for a moment and then looked at again, whole: what was on its way
    at the first look is there by then.
    """

    def __init__(self, look_again: Callable[[list[UUID]], None], moment_seconds: float) -> None:
        self._found = dict[UUID, None]()
        self._look_again, self._moment_seconds = look_again, moment_seconds

    def add(self, ids: Sequence[UUID]) -> None:
        self._found |= dict.fromkeys(ids)
        if len(self._found) >= MOST_SUSPECTS:
            self.settle()

    def settle(self) -> None:
        """Look at them again, if there are any."""
        if self._found:
            time.sleep(self._moment_seconds)
            self._look_again(list(self._found))
            self._found.clear()


_NOT_HEXADECIMAL = str.maketrans("", "", "{-,}")


def derived_ids(column: str, name: str) -> str:
    """Return `uuid5(uuid, name)` for a whole array of uuids, in their order.

    Most rows that are audited are plainly in order, and the servers can tell. So a column goes from one server to the
    other as PostgreSQL writes arrays: to make an object of each value on the way would take longer than all the rest.
    """
    uuids, ending, made = bytes.fromhex(column.translate(_NOT_HEXADECIMAL)), name.encode(), []
    for at in range(0, len(uuids), 16):
        found = sha1(uuids[at : at + 16] + ending, usedforsecurity=False).hexdigest()
        variant = "89ab"[int(found[16], 16) & 3]
        made.append(f"{found[:12]}5{found[13:16]}{variant}{found[17:32]}")
    return f"{{{','.join(made)}}}"


# --- an audit that did not come to its end: that says nothing of the books, and must not look as if they were wrong


class UnfinishedAudit(Transient):
    """Run it again: what it has looked at so far is not all."""

    exit_code = Exit.PARTIAL


def cancelled(error: FerrymanError) -> bool:
    """Return True if a statement took longer than it may."""
    return isinstance(error.__cause__, QueryCanceled)


@contextmanager
def finishing() -> Iterator[None]:
    """Give an audit that fails inside an exit code of its own: 1 is for books that are wrong."""
    try:
        yield
    except FerrymanError as error:
        said = f"the audit did not finish: {error.message}"
        if cancelled(error):
            raise Misconfigured(
                said, setting="database.statement_timeout_seconds",
                remedy="raise it for this command alone, and run it again",
            ) from error  # fmt: skip
        if error.exit_code is Exit.FAILURE:
            raise UnfinishedAudit(said, setting=error.setting, remedy=error.remedy or "run it again") from error
        raise
