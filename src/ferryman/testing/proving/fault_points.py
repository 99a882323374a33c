"""The faults that strike a process at its points, and the connection that shows its handlers' statements."""

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from threading import Barrier, BrokenBarrierError
from typing import Any, Literal, NamedTuple, cast

import psycopg

HANDLE = "handle"
"""The step in which the handlers run: each of their statements is a point of its own."""
STATEMENT = "statement"
COMMIT = "commit"

_MEET_SECONDS = 2.0
_REFUSE = """\
-- prove.refuse
DO $$ BEGIN RAISE serialization_failure USING MESSAGE = 'prove: try this transaction again'; END $$
"""

Kind = Literal["crash", "crash after", "lost", "refused", "answer lost"]
_NAMES: dict[Kind, str] = {
    "crash": "crash before {}",
    "crash after": "crash after {}",
    "lost": "connection lost before {}",
    "refused": "{} is refused with 40001",
    "answer lost": "{} whose answer is lost",
}


class Crash(BaseException):
    """The process is dead: nothing of it may continue."""


class Fault(NamedTuple):
    """A fault that happens once, at one point."""

    kind: Kind
    point: str

    def __str__(self) -> str:
        return _NAMES[self.kind].format(self.point)


class Points:
    """The points that a run meets, in order, named as the loop names its steps, and the fault that strikes at one."""

    def __init__(self, fault: Fault | None = None, meeting: Barrier | None = None) -> None:
        self.met: list[str] = []
        self.told: list[list[str]] = [[]]
        """The story of the run for the error message: a line per process and connection."""
        self.connection: WatchedConnection | None = None
        self._fault = fault
        self._meeting = meeting
        self._counts: Counter[str] = Counter()
        self._step = ""
        self._dead = False

    def before(self, step: str) -> None:
        """Meet a step of the loop. It is the loop's hook."""
        self._step = step
        if step == HANDLE and self._meeting is not None:
            meeting, self._meeting = self._meeting, None
            try:
                meeting.wait(_MEET_SECONDS)
            except BrokenBarrierError:  # the other one has nothing to handle, or waits for a lock
                pass
        self._meet(step)

    def statement(self) -> bool:
        """Meet a statement of the handlers. Return True if the server is to refuse it."""
        if self._step != HANDLE:
            return False
        point = self._meet(STATEMENT)
        return self._strikes("refused", point)

    def end(self) -> None:
        """Meet the end of the run."""
        if self.met and self._strikes("crash after", self.met[-1]):
            self._die()

    def restarted(self) -> None:
        self._dead, self._step = False, ""
        self.tell("a new worker: what was not committed at Kafka comes again")

    def tell(self, words: str) -> None:
        self.told += [[words], []]

    def _meet(self, what: str) -> str:
        if self._dead:  # a handler that swallows everything swallowed its own end
            raise Crash
        self._counts[what] += 1
        point = _named(what, self._counts[what])
        self.met.append(point)
        self.told[-1].append(point)
        if self._strikes("crash", point):
            self._die()
        if self._strikes("answer lost", point):
            self._cut(after=b"COMMIT")
        elif self._strikes("lost", point):
            self._cut()
        return point

    def _strikes(self, kind: Kind, point: str) -> bool:
        if self._fault != Fault(kind, point):
            return False
        self.told[-1].append(str(self._fault).upper())
        self._fault = None
        return True

    def _die(self) -> None:
        self._dead = True
        self._cut()
        raise Crash

    def _cut(self, after: bytes = b"") -> None:
        """Cut the connection without a goodbye, as the kernel does when a process is killed, or a network."""
        if self.connection is None or self.connection.closed:
            return
        if after:
            self.connection.pgconn.exec_(after)
        with socket.socket(fileno=os.dup(self.connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that tells its points of each statement of its cursors."""

    points: Points

    @classmethod
    def open(cls, url: str, points: Points) -> "WatchedConnection":
        connection = cls.connect(url, autocommit=True, cursor_factory=_Cursor, application_name="ferryman prove")
        connection.server_cursor_factory = _ServerCursor
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.points = points
        points.connection = connection
        return connection


class _Announcing:
    """A cursor that announces each statement before it."""

    def execute(self, *args: Any, **more: Any) -> Any:
        return self._told().execute(*args, **more)

    def executemany(self, *args: Any, **more: Any) -> None:
        self._told().executemany(*args, **more)

    def copy(self, *args: Any, **more: Any) -> Any:
        return self._told().copy(*args, **more)

    def stream(self, *args: Any, **more: Any) -> Iterator[Any]:
        return cast("Iterator[Any]", self._told().stream(*args, **more))

    def _told(self) -> Any:
        above: Any = super()
        if cast("Any", self).connection.points.statement():
            above.execute(_REFUSE)
        return above


class _Cursor(_Announcing, psycopg.Cursor[Any]):
    pass


class _ServerCursor(_Announcing, psycopg.ServerCursor[Any]):
    pass


def _named(what: str, count: int) -> str:
    """Return the name of a point. Statements are always numbered, steps only when they come again."""
    if what == STATEMENT:
        return f"{what} {count}"
    return what if count == 1 else f"{what} ({count})"


def faults(points: Iterable[str], *, all_kinds: bool) -> list[Fault]:
    """Return every fault that can happen at these points."""
    met = list(dict.fromkeys(points))
    found = [Fault("crash", point) for point in met] + [Fault("crash after", met[-1])]
    if all_kinds:
        found += [Fault("answer lost", point) for point in met if point.split()[0] == COMMIT]
        found += [Fault("lost", point) for point in met]
        found += [Fault("refused", point) for point in met if point.startswith(STATEMENT)]
    return found
