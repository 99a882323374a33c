"""The engine of sagas: results and timeouts move each saga once, in one transaction with the messages that follow."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, cast

from ferryman.consumer.model import Done, Outcome, Received
from ferryman.message import Message, Refused, only_messages
from ferryman.outbox import append_many, refuse_autocommit
from ferryman.runtime.errors import Transient
from ferryman.runtime.postgres import Connection
from ferryman.saga import metrics
from ferryman.saga.answers import KEEP, Answer, Go, Key, Row, RowT
from ferryman.saga.asking import VISIT
from ferryman.saga.declaration import Saga
from ferryman.saga.store import Moved, SagaStore, Stray


class Started(NamedTuple, Generic[RowT]):
    """A saga that was to be started: how it stands, and whether it is new."""

    row: RowT
    is_new: bool


class SagaEngine(Generic[RowT]):
    """The engine of one saga. Every method works in the caller's transaction."""

    def __init__(self, saga: Saga[RowT]) -> None:
        self.saga, self.machine = saga, saga.machine
        self.store = SagaStore(self.machine, saga.fields)
        self._row: Any = saga.row
        metrics.begin(self.machine.name)

    def start(self, db: Connection, rows: Sequence[RowT]) -> list[Started[RowT]]:
        """Write these sagas and their first commands, each once. Return how each stands."""
        refuse_autocommit(db)
        initial = self.machine.initial
        wanted: dict[Key, RowT] = {}
        for each in rows:
            if not isinstance(each, self._row):
                raise TypeError(f"a saga of {self.machine.name} starts with a {self._row.__name__}, not {each!r:.100}")
            if cast(Any, each).state != initial:
                raise ValueError(f"a saga of {self.machine.name} begins as {initial}, not as {cast(Any, each).state}")
            wanted.setdefault(self.saga.checked_key(each[0], "its row"), each)
        new = self.store.insert(db, list(wanted.values()), self.saga.states[initial].wait_seconds(1))
        if self.saga.states[initial].ask is not None:
            append_many(db, [self.saga.command(row) for key, row in wanted.items() if key in new])
        there = {row[0]: self._row(*row) for row in self.store.find(db, [key for key in wanted if key not in new])}
        if missing := wanted.keys() - new - there.keys():
            raise Transient(f"the saga {min(map(str, missing))} of {self.machine.name} was archived in the meantime")
        return [
            Started(there.get(each[0], wanted[each[0]]), each[0] in new and each is wanted[each[0]]) for each in rows
        ]

    def apply(self, db: Connection, results: Sequence[Received]) -> list[Outcome]:
        """Apply a batch of results in their order, and return their outcomes: a handler for `handles_batch`."""
        begun = self._begin(db, results)
        rest = [each for each in results if each.id not in begun] if begun else results
        keys = [self.saga.key_of(each) for each in rest]
        rows = self.store.lock(db, set(keys))
        if self.saga.noted is not None and (believed := [each for each in rest if self.saga.results.believes(each)]):
            self.saga.noted(db, believed)
        work = self._work(db, rows)
        applied = [*map(work.apply, keys, rest)]
        self._write(db, work)
        left = iter(applied)
        return [begun[each.id] if each.id in begun else next(left) for each in results] if begun else applied

    def tell(self, handled: Sequence[tuple[Received, Done | Refused]]) -> None:
        """Count what a committed batch did: a callback for `after_commit`."""
        outcomes = [outcome for _, outcome in handled]
        applied = [each for each in outcomes if isinstance(each, Applied)]
        metrics.report_moves(self.machine, [step for each in applied for step in each.steps])
        metrics.count_strays(self.machine.name, [each.reason for each in outcomes if isinstance(each, Refused)])

    def tell_due(self, moved: Sequence[Moved]) -> None:
        """Count committed moves of `due`."""
        metrics.TIMEOUTS.labels(self.machine.name).inc(len({each.key for each in moved}))
        metrics.report_moves(self.machine, moved)

    def due(self, db: Connection, most: int = 500) -> list[Moved]:
        """Move sagas that are due; pass the moves to `tell_due` once the transaction is committed."""
        return self.move_due(db, self.store.due(db, most))

    def move_due(self, db: Connection, rows: Sequence[tuple[Any, ...]]) -> list[Moved]:
        """Move the sagas of these rows, which `store.due` has locked."""
        work = self._work(db, rows)
        moved = [step for saga in work.known.values() for step in work.take(saga, self.saga.on_due(saga.row))]
        self._write(db, work)
        return moved

    def act(self, db: Connection, keys: Sequence[Key], rule: Callable[[RowT], Answer]) -> int:
        """Move the sagas for which the rule returns a step. Return their number."""
        work = self._work(db, self.store.lock(db, keys))
        answers = [(saga, answer) for saga in work.known.values() if (answer := rule(saga.row))]
        moved = [step for saga, answer in answers for step in work.take(saga, answer)]
        self._write(db, work)
        metrics.report_moves(self.machine, moved)
        return len(answers)

    def _begin(self, db: Connection, messages: Sequence[Received]) -> dict[Any, Outcome]:
        """Start the sagas that these messages start. Return their outcomes by the messages' ids."""
        rows = {each.id: make(each) for each in messages if (make := self.saga.starting(each))}
        if rows:
            self.start(db, list(rows.values()))
        return {identity: Done() for identity in rows}

    def _work(self, db: Connection, rows: Sequence[tuple[Any, ...]]) -> "_Work[RowT]":
        known = [self._row(*row) for row in rows]
        if known and self.saga.fill is not None:
            known = self._filled(known, self.saga.fill(db, known))
        return _Work(self.saga, {each[0]: _Moving(each) for each in known})

    def _filled(self, known: Sequence[RowT], filled: Sequence[RowT]) -> list[RowT]:
        """Return the rows with the fields that stand in other tables, or raise if one of them is missing."""
        by_key: dict[Key, Any] = {each[0]: each for each in filled}
        if by_key.keys() != {each[0] for each in known}:
            raise ValueError(f"`complete` of {self.machine.name} did not return every row: return each, in any order")
        columns = len(self.saga.fields)  # what is completed stands behind them
        return [self._row(*each[:columns], *by_key[each[0]][columns:]) for each in known]

    def _write(self, db: Connection, work: "_Work[RowT]") -> None:
        """Write the moves in rounds, one step of each saga a round: the table's guards must see every transition."""
        moving, step = [each for each in work.known.values() if each.moves], 0
        while moving:
            if self.store.move(db, [each.moves[step] for each in moving]) != len(moving):
                raise Transient(f"a saga of {self.machine.name} was moved by another process in the meantime")
            step += 1
            moving = [each for each in moving if len(each.moves) > step]
        for table, rows in work.rows.items():
            self.store.insert_rows(db, table, rows)
        if work.strays:
            self.store.keep_strays(db, work.strays)
        if work.messages:
            append_many(db, work.messages)


class Applied(Done):
    """The outcome of a result that moved its saga, with the steps."""

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[Moved]) -> None:
        self.reports = ()
        self.steps = steps


class _Moving(Generic[RowT]):
    """A saga of a batch: its row as the last step left it, and its moves, one for each round."""

    __slots__ = ("moves", "row")

    def __init__(self, row: RowT) -> None:
        self.row = row
        self.moves: list[Moved] = []


@dataclass(slots=True)
class _Work(Generic[RowT]):
    """A batch: the steps of its sagas, and the rows and messages beside them."""

    saga: Saga[RowT]
    known: dict[Key, _Moving[RowT]]
    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    messages: list[Message] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)

    def apply(self, key: Key, result: Received) -> Outcome:
        """Take the steps that a result leads to, or keep it as a stray."""
        saga = self.known.get(key)
        if saga is None:
            return self._stray(key, result, "UNKNOWN")
        if not self.saga.results.believes(result) or (self.saga.fits and not self.saga.fits(saga.row, result)):
            return self._stray(key, result, "FORGED")
        if self.saga.noted is not None and saga.moves:  # by a rule that knew of this result too
            return Applied([])
        if not (answer := self.saga.on_result(saga.row, result)):
            self.messages += only_messages(tuple(self.saga.late(saga.row, result)))
            return self._stray(key, result, "LATE")
        return Applied(self.take(saga, answer))

    def take(self, saga: _Moving[RowT], answer: Answer) -> list[Moved]:
        """Take these steps, one after the other."""
        if isinstance(answer, Go):
            return [self._step(saga, answer)]
        return [self._step(saga, each) for each in answer or ()]

    def _stray(self, key: Key, result: Received, why: Any) -> Refused:
        self.strays.append(Stray(key, result, why))
        return Refused(why)

    def _step(self, saga: _Moving[RowT], go: Go) -> Moved:
        row: Any = saga.row
        if not self.saga.machine.may(row.state, go.state):
            what = f"a rule of {self.saga.name} leads from {row.state} to {go.state}"
            raise ValueError(f"{what}: there is no such transition")
        state, enters = self.saga.states[go.state], go.state != row.state
        asks = state.ask is not None and (enters or go.again)
        attempt = (1 if enters else row.attempt + 1) if asks else row.attempt
        due = go.due if go.due is not KEEP or not (enters or asks) else state.wait_seconds(attempt if asks else 1)
        reason = row.reason if go.reason is KEEP else go.reason
        sets = self._settable(row.state, go.set) if go.set else go.set
        if enters and go.state in self.saga.revisited:
            sets = {**sets, VISIT: (row.visit or 0) + 1}
        saga.row = now = row._replace(**{"state": go.state, "attempt": attempt, "reason": reason, **sets})
        if asks:
            self.messages.append(self.saga.command(now))
        self.messages += go.messages
        for each in go.rows:
            self.rows[each.table].append(each)
        ours = {name: value for name, value in sets.items() if name != "attempt"} if sets else sets
        moved = Moved(now[0], row.state, go.state, now.attempt, now.reason, due, ours)
        if saga.moves and not enters:  # no guard looks at a step that stays, so it needs no round of its own
            saga.moves[-1] = saga.moves[-1].then(moved)
        else:
            saga.moves.append(moved)
        return moved

    def _settable(self, state: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return these new values of columns, or raise if a rule may not set one of them."""
        if unknown := given.keys() - self.saga.settable:
            what = f"a rule of {self.saga.name} sets {min(unknown)} in {state}, which is not a column that it may set"
            raise ValueError(f"{what}: {', '.join(sorted(self.saga.settable))}")
        return given
