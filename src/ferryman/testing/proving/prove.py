"""`prove`: runs a consumer's handlers through a fault at every point where a process can die."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from ferryman.consumer.api import Consumer
from ferryman.message import Message
from ferryman.testing.proving import saga_proof, scenarios
from ferryman.testing.proving.database_state import DatabaseState, url_of
from ferryman.testing.proving.fault_points import Points
from ferryman.testing.proving.memory_kafka import SentMessage, described, sent
from ferryman.testing.proving.proof import Faulty, Invariant, Left, NotProven, asked, broken, seen
from ferryman.testing.proving.prove_owner import ProveOwner, Stuck
from ferryman.testing.proving.scenarios import PLAIN, Scenario

if TYPE_CHECKING:
    from ferryman.saga.declaration import Saga

_CONNECTED = """\
-- prove.connected
SELECT pid FROM pg_stat_activity WHERE datname = current_database()
"""


def prove(
    target: "Consumer | Saga[Any]",
    *messages: Message,
    db: "psycopg.Connection[Any]",
    invariant: Invariant,
    only: str | None = None,
    reset: Callable[[], object] | None = None,
    repeatable: bool = True,
) -> list[str]:
    """Prove that the messages take effect once, whatever happens: the invariant holds at the end of every run.

    `target` is a consumer, or a saga: then the messages are its results, and in further runs all its sagas time out
    right before each of them.

    Run the consumer's own loop on `db`'s database as it is now, with Kafka in memory: first plainly; then with a crash
    before each step of the loop and each statement of the handlers, with the connection lost there, with refused
    statements and a commit whose answer is lost, each redelivered; with duplicates, replayed, with two owners at once,
    and with keys in another order. The database is put back before each run and at the end.

    The invariant gets `db`, and holds if it returns something true or nothing. `only` names the one run to try. `reset`
    puts back what the invariant looks at outside the database. With `repeatable=False`, reports may differ from try to
    try. Return the names of the runs.
    """
    if not messages:
        raise ValueError("prove needs a message")
    if db.info.transaction_status != TransactionStatus.IDLE:
        raise ValueError("the connection has a transaction open: commit what the messages are to find")
    if isinstance(target, Consumer):
        given, proven = list(messages), {"": target}
    else:
        saga = saga_proof.ProvenSaga.of(target, messages)
        given, proven = list(saga.messages), saga.consumers()
    tried: list[str] = []
    with _quiet(), psycopg.connect(url_of(db), autocommit=True) as keeper:
        for beginning, consumer in proven.items():
            if only is not None and beginning != saga_proof.beginning_of(only):
                continue
            encoded = [sent(consumer, message, number) for number, message in enumerate(given)]
            proof = _Proof(consumer, encoded, db, keeper, invariant, reset, repeatable, beginning)
            try:
                tried += proof.run(only)
            finally:
                proof.restore()
    return tried


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's warnings about broken connections: here they break all the time."""
    logger = logging.getLogger("psycopg")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass
class _Proof:
    consumer: Consumer
    messages: list[SentMessage]
    db: "psycopg.Connection[Any]"
    keeper: "psycopg.Connection[tuple[Any, ...]]"
    invariant: Invariant
    reset: Callable[[], object] | None
    repeatable: bool
    beginning: str = ""
    """The beginning of the names of the runs, where there are several proofs."""
    plain: Left | None = None
    tried: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._state = DatabaseState(self.keeper)
        self._url = url_of(self.db)
        self._spared = [pid for (pid,) in self.keeper.execute(_CONNECTED).fetchall()]
        handled = self.consumer.handlers if self.consumer.unknown == "ignore" else None
        self._expected = [UUID(each.id) for each in self.messages if handled is None or each.type in handled]

    def run(self, only: str | None) -> list[str]:
        known = []
        for base in scenarios.undisturbed(self.messages):
            points = self._try(base, judged=base.name == PLAIN or only in (None, self._named(base)))
            known += [base, *scenarios.disturbed(base, points)]
        known += scenarios.arranged(self.messages)
        names = [self._named(each) for each in known]
        if only is not None and only not in names:
            raise ValueError(f"there is no run {only!r}; there are:" + "".join(f"\n  {name}" for name in names))
        for scenario in known:
            if self._named(scenario) not in self.tried and only in (None, self._named(scenario)):
                self._try(scenario)
        return self.tried

    def _named(self, scenario: Scenario) -> str:
        return self.beginning + scenario.name

    def restore(self) -> None:
        self._state.restore(self.keeper)

    def _try(self, scenario: Scenario, *, judged: bool = True) -> list[str]:
        """Try one scenario, and return the points that it met."""
        points, faulty, stuck = self._let_run(scenario)
        left = seen(self.keeper, self.consumer.name, self._spared, faulty)
        self.plain = self.plain or left
        if judged:
            self.tried.append(self._named(scenario))
            wrong = asked(self.invariant, self.db)
            if wrong is not None and scenario.name != PLAIN:
                wrong += self._carried_over()
            if problem := stuck or self._broken(scenario, left) or wrong:
                both = "" if wrong in (None, problem) else f"\n  and {wrong}"
                raise NotProven(_words(self._named(scenario), scenario, points, left, problem + both))
        return points[0].met

    def _broken(self, scenario: Scenario, left: Left) -> str | None:
        assert self.plain is not None
        return broken(
            left,
            self.plain,
            self._expected,
            at_most_once=self.consumer.mode == "at_most_once",
            compare=self.repeatable and scenario.in_order,
            again=scenario.replayed and self.consumer.rereport,
        )

    def _let_run(self, scenario: Scenario) -> tuple[list[Points], Faulty, str | None]:
        """Run the scenario from the original state, several owners in threads."""
        self.restore()
        if self.reset is not None:
            self.reset()
        meeting = Barrier(scenario.owners) if scenario.owners > 1 else None
        points = [Points(scenario.fault, meeting) for _ in range(scenario.owners)]
        owners = [ProveOwner(self.consumer, self._url, scenario.topics(), scenario.batch, each) for each in points]
        try:
            if meeting is None:
                owners[0].run(again=scenario.replayed)
            else:
                with ThreadPoolExecutor(len(owners)) as threads:
                    deque(threads.map(partial(ProveOwner.run, again=scenario.replayed), owners))
            stuck = None
        except Stuck as error:
            stuck = str(error)
        except Exception as error:
            error.add_note(f"in the run {scenario.name!r}")
            raise
        if len(owners) > 1:  # a handler that came second may fail on what the first one made of the rows
            return points, [], stuck
        return points, owners[0].faulty, stuck

    def _carried_over(self) -> str:
        """Say if the plain run fails by now: then something is kept that is not in the database."""
        self._let_run(scenarios.undisturbed(self.messages)[0])
        if asked(self.invariant, self.db) is None:
            return ""
        return (
            "\n  (The plain run, which was good at first, is not any more: something outside this database goes from "
            "one run to the next: memory, a file, another database. What happens there happens at each try; or, if "
            "it is the test's own, put it back by reset=...)"
        )


def _words(name: str, scenario: Scenario, points: list[Points], left: Left, problem: str) -> str:
    rejected = "".join(f"\n  rejected: {identity}: {why}" for identity, why in left.rejected.items())
    done = "\n    beside it:\n".join(
        "\n".join(f"    {', '.join(line)}" for line in each.told if line) for each in points
    )
    return (
        f"{name}: {problem}{rejected}\n\n"
        f"  run just this one: prove(..., only={name!r})\n"
        f"  what came, in this order, {scenario.batch} in a batch:\n"
        f"{described(scenario.messages)}\n  what was done, step by step:\n{done}\n"
    )
