"""Sagas of one machine: results and timeouts move them, each once, in one transaction with the messages that follow."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from ferryman.consumer.model import Done, Outcome, Received, Refused
from ferryman.consumer.retries import retry_topic
from ferryman.message import Message
from ferryman.outbox import append_many
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.saga import metrics, telling
from ferryman.saga.machine import Machine
from ferryman.saga.model import Key, Move, RowT, Stray
from ferryman.saga.store import Connection, Kept, Moved, Store


class Source(NamedTuple):
    """Where results come from, and the consumer that reads them."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Results:
    """From where each type of results is believed, and of which saga one is.

    Who may write to one topic has no word on what another brings; what is requeued comes by the consumer's own. Topics
    of different writers need consumers of their own: a consumer knows a message by its id alone, so that one of them
    could use up the ids of another's.
    """

    sources: Mapping[str, Source]
    of: Callable[[Received], Key]

    def believes(self, result: Received) -> bool:
        source = self.sources.get(result.type)
        return source is not None and result.topic in (source.topic, retry_topic(source.topic, source.consumer))


class Sagas(Generic[RowT]):
    """What a service writes of its saga: the machine, its row, where results come from, and two pure rules.

    `on_result` and `on_due` are given the saga as it stands, and answer with what becomes of it; they know no database
    and no clock. A result may come twice, late, or for nothing: whatever is no `Move` is a `Stray`.
    """

    def __init__(
        self,
        machine: Machine,
        row: type[RowT],
        results: Results,
        *,
        on_result: Callable[[RowT, Received], Move | Stray],
        on_due: Callable[[RowT], Move],
    ) -> None:
        self.machine = machine
        self.store = Store(machine, columns_of(row))
        self._row = row
        self._results = results
        self._on_result = on_result
        self._on_due = on_due
        metrics.begin(machine.name)

    def apply(self, db: Connection, results: Sequence[Received]) -> list[Outcome]:
        """A batch of results, in their order: the outcome of each. What `handles_batch` wants."""
        known = self._rows(self.store.lock(db, list({self._results.of(each) for each in results})))
        work = _Work(self.machine, known)
        strays: list[Kept] = []
        outcomes: list[Outcome] = []
        for result in results:
            key = self._results.of(result)
            answer = self._answer(known.get(key), result)
            if isinstance(answer, Move):
                outcomes.append(Applied(work.move(key, answer)))
            else:
                work.messages += answer.messages
                strays.append(Kept(result.id, key, answer.why, result.type, _plain(result.data)))
                outcomes.append(Refused(answer.why))
        self._write(db, work)
        if strays:
            self.store.keep_strays(db, strays)
        return outcomes

    def tell(self, handled: Sequence[tuple[Received, Done | Refused]]) -> None:
        """Counts what a batch did, once that is committed. What `after_commit` wants."""
        outcomes = [outcome for _, outcome in handled]
        telling.moved(self.machine, [each.moved for each in outcomes if isinstance(each, Applied)])
        metrics.strays(self.machine.name, [each.reason for each in outcomes if isinstance(each, Refused)])

    def tell_due(self, moved: Sequence[Moved]) -> None:
        """As `tell`, of what `due` did."""
        metrics.TIMEOUTS.labels(self.machine.name).inc(len(moved))
        telling.moved(self.machine, moved)

    def due(self, db: Connection, most: int = 500) -> list[Moved]:
        """Moves those whose time has come, in the caller's transaction; `tell_due` is told when that is committed."""
        return self._move_due(db, self.store.due(db, most))

    def due_one(self, db: Connection, key: Key) -> list[Moved]:
        """As `due`, of this one."""
        return self._move_due(db, self.store.due_one(db, key))

    def _move_due(self, db: Connection, rows: Sequence[tuple[Any, ...]]) -> list[Moved]:
        known = self._rows(rows)
        work = _Work(self.machine, known)
        moved = [work.move(key, self._on_due(saga)) for key, saga in list(known.items())]
        self._write(db, work)
        return moved

    def act(self, db: Connection, keys: Sequence[Key], rule: Callable[[RowT], Move | None]) -> int:
        """Moves those of these sagas that the rule gives a move, in the caller's transaction; how many."""
        known = self._rows(self.store.lock(db, list(keys)))
        work = _Work(self.machine, known)
        moves = {key: move for key, saga in known.items() if (move := rule(saga))}
        moved = [work.move(key, move) for key, move in moves.items()]
        self._write(db, work)
        telling.moved(self.machine, moved)
        return len(moves)

    def _answer(self, saga: RowT | None, result: Received) -> Move | Stray:
        if saga is None:
            return Stray("UNKNOWN")
        return self._on_result(saga, result) if self._results.believes(result) else Stray("FORGED")

    def _rows(self, rows: Sequence[tuple[Any, ...]]) -> dict[Key, RowT]:
        make: Any = self._row
        return {row[0]: make(*row) for row in rows}

    def _write(self, db: Connection, work: "_Work[RowT]") -> None:
        """A round for each step of a saga that made several: each is a transition that its table's guards see."""
        for moved in work.rounds:
            if self.store.move(db, moved) != len(moved):
                raise Transient(f"a saga of {self.machine.name} was moved by another process meanwhile")
        if work.messages:
            append_many(db, work.messages)


class Applied(Done):
    """With the step that it made."""

    __slots__ = ("moved",)

    def __init__(self, moved: Moved) -> None:
        super().__init__()
        self.moved = moved


class _Work(Generic[RowT]):
    """What a batch comes to."""

    def __init__(self, machine: Machine, known: dict[Key, RowT]) -> None:
        self.rounds: list[list[Moved]] = []
        self.messages: list[Message] = []
        self._machine = machine
        self._known = known
        self._steps: dict[Key, int] = {}

    def move(self, key: Key, move: Move) -> Moved:
        saga: Any = self._known[key]
        if not self._machine.may(saga.state, move.state):
            raise ValueError(f"a rule of {self._machine.name} leads from {saga.state} to {move.state}: no such way")
        step = self._steps.get(key, 0)
        self._steps[key] = step + 1
        if step == len(self.rounds):
            self.rounds.append([])
        moved = Moved(key, saga.state, move.state, move.attempt, move.reason, move.due_seconds)
        self.rounds[step].append(moved)
        self.messages += move.messages
        self._known[key] = saga._replace(state=move.state, attempt=move.attempt, reason=move.reason)
        return moved


def columns_of(row: type[tuple[Any, ...]]) -> tuple[str, ...]:
    """Of a NamedTuple: its fields."""
    found: tuple[str, ...] = getattr(row, "_fields", ())
    if not {"state", "attempt", "reason"} <= set(found):
        raise Misconfigured(
            f"{row.__name__} is no row of a saga", remedy="a NamedTuple with `state`, `attempt` and `reason`"
        )
    return found


def _plain(data: Any) -> dict[str, Any]:
    """As JSON has it, for people to read."""
    if isinstance(data, bytes):
        return {"bytes": len(data)}
    said: dict[str, Any] = json.loads(json.dumps(data, default=str))
    return said
