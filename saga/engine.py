"""The engine of sagas: results and timeouts move each saga once, in one transaction with the messages that follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from pydantic import SecretStr

from ferryman.consumer.kafka.consumer_topics import retry_topic
from ferryman.consumer.model import Done, Outcome, Received
from ferryman.message import Message, Refused
from ferryman.outbox import append_many
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.postgres import Connection
from ferryman.saga import metrics
from ferryman.saga.machine import Machine
from ferryman.saga.moves import Key, Move, RowT, Stray
from ferryman.saga.store import Moved, SagaStore


class ResultSource(NamedTuple):
    """A topic that results come from, and the consumer that reads it."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Results:
    """The source from which each type of result is believed, and the saga that a result belongs to.

    A writer of one topic must not decide about the results of another; requeued results come by the consumer's retry
    topic. Topics with different writers need different consumers: a consumer knows a message by its id alone, so one
    writer could use up the ids of another.
    """

    sources: Mapping[str, ResultSource]
    of: Callable[[Received], Key]

    def believes(self, result: Received) -> bool:
        """Return True if the result came from the source of its type."""
        source = self.sources.get(result.type)
        return source is not None and result.topic in (source.topic, retry_topic(source.topic, source.consumer))


class Sagas(Generic[RowT]):
    """A saga as a service declares it: the machine, its row, the sources of results, and two pure rules.

    `on_result` and `on_due` get the current row and return what becomes of it; they know no database and no clock. A
    result may come twice, late or unasked: what does not lead to a `Move` is a `Stray`.
    """

    def __init__(
        self,
        machine: Machine,
        row: type[RowT],
        results: Results,
        *,
        on_result: Callable[[RowT, Received], Move | Stray],
        on_due: Callable[[RowT], Move],
        participants: Mapping[str, str] | None = None,
        outboxes: Mapping[str, SecretStr] | None = None,
    ) -> None:
        """`participants` names, by topic of commands, the consumer group that must read them for time to count.

        `outboxes` has, by topic of results, the URL of the database whose outbox must have published them.
        """
        columns: tuple[str, ...] = getattr(row, "_fields", ())
        if not {"state", "attempt", "reason"} <= set(columns):
            raise Misconfigured(
                f"{row.__name__} is not a row of a saga",
                remedy="give a NamedTuple with `state`, `attempt` and `reason`",
            )
        self.machine = machine
        self.store = SagaStore(machine, columns)
        self._row = row
        self._results = results
        self._on_result = on_result
        self._on_due = on_due
        self.participants = dict(participants or {})
        self.outboxes = dict(outboxes or {})
        metrics.begin(machine.name)

    @property
    def listeners(self) -> list[ResultSource]:
        """The groups, each with its topic, that must have read everything for the sagas' time to count."""
        participants = [ResultSource(group, topic) for topic, group in self.participants.items()]
        return [*dict.fromkeys(self._results.sources.values()), *participants]

    def apply(self, db: Connection, results: Sequence[Received]) -> list[Outcome]:
        """Apply a batch of results in their order, and return their outcomes: a handler for `handles_batch`."""
        work = self._work(self.store.lock(db, list({self._results.of(each) for each in results})))
        strays: list[tuple[Key, Received, Stray]] = []
        outcomes: list[Outcome] = []
        for result in results:
            key = self._results.of(result)
            answer = self._answer(work.known.get(key), result)
            if isinstance(answer, Move):
                outcomes.append(Applied(work.move(key, answer)))
            else:
                work.messages += answer.messages
                strays.append((key, result, answer))
                outcomes.append(Refused(answer.why))
        self._write(db, work)
        if strays:
            self.store.keep_strays(db, strays)
        return outcomes

    def tell(self, handled: Sequence[tuple[Received, Done | Refused]]) -> None:
        """Count what a committed batch did: a callback for `after_commit`."""
        outcomes = [outcome for _, outcome in handled]
        metrics.report_moves(self.machine, [each.moved for each in outcomes if isinstance(each, Applied)])
        metrics.count_strays(self.machine.name, [each.reason for each in outcomes if isinstance(each, Refused)])

    def tell_due(self, moved: Sequence[Moved]) -> None:
        """Count committed moves of `due`."""
        metrics.TIMEOUTS.labels(self.machine.name).inc(len(moved))
        metrics.report_moves(self.machine, moved)

    def due(self, db: Connection, most: int = 500) -> list[Moved]:
        """Move sagas that are due, in the caller's transaction; pass the moves to `tell_due` once it is committed."""
        return self.move_due(db, self.store.due(db, most))

    def move_due(self, db: Connection, rows: Sequence[tuple[Any, ...]]) -> list[Moved]:
        """Move the sagas of these rows, which `store.due` has locked."""
        work = self._work(rows)
        moved = [work.move(key, self._on_due(saga)) for key, saga in list(work.known.items())]
        self._write(db, work)
        return moved

    def act(self, db: Connection, keys: Sequence[Key], rule: Callable[[RowT], Move | None]) -> int:
        """Move the sagas for which the rule returns a move, in the caller's transaction. Return their number."""
        work = self._work(self.store.lock(db, list(keys)))
        moves = {key: move for key, saga in work.known.items() if (move := rule(saga))}
        moved = [work.move(key, move) for key, move in moves.items()]
        self._write(db, work)
        metrics.report_moves(self.machine, moved)
        return len(moves)

    def _answer(self, saga: RowT | None, result: Received) -> Move | Stray:
        if saga is None:
            return Stray("UNKNOWN")
        return self._on_result(saga, result) if self._results.believes(result) else Stray("FORGED")

    def _work(self, rows: Sequence[tuple[Any, ...]]) -> "_Work[RowT]":
        make: Any = self._row
        return _Work(self.machine, {row[0]: make(*row) for row in rows})

    def _write(self, db: Connection, work: "_Work[RowT]") -> None:
        """Write the moves in rounds, one step of each saga a round: the table's guards must see every transition."""
        for moved in work.rounds:
            if self.store.move(db, list(moved.values())) != len(moved):
                raise Transient(f"a saga of {self.machine.name} was moved by another process in the meantime")
        if work.messages:
            append_many(db, work.messages)


class Applied(Done):
    """The outcome of a result that moved its saga, with the move."""

    __slots__ = ("moved",)

    def __init__(self, moved: Moved) -> None:
        super().__init__()
        self.moved = moved


class _Work(Generic[RowT]):
    """The moves and messages of one batch."""

    def __init__(self, machine: Machine, known: dict[Key, RowT]) -> None:
        self.known = known
        self.rounds: list[dict[Key, Moved]] = []
        self.messages: list[Message] = []
        self._machine = machine
        self._steps: dict[Key, int] = {}

    def move(self, key: Key, move: Move) -> Moved:
        saga: Any = self.known[key]
        if not self._machine.may(saga.state, move.state):
            raise ValueError(
                f"a rule of {self._machine.name} leads from {saga.state} to {move.state}: there is no such transition"
            )
        moved = Moved(key, saga.state, move.state, move.attempt, move.reason, move.due_seconds)
        step = self._steps.get(key, 0)
        if step and move.state == saga.state:
            last = self.rounds[step - 1]
            last[key] = moved._replace(before=last[key].before)  # no guard looks at a saga that stays
        else:
            self._steps[key] = step + 1
            if step == len(self.rounds):
                self.rounds.append({})
            self.rounds[step][key] = moved
        self.messages += move.messages
        self.known[key] = saga._replace(state=move.state, attempt=move.attempt, reason=move.reason)
        return moved
