"""N1, N3, N8, N11: dispatchers under load while they, their database and their receiver fail at random, by a seed.

Slow, because processes and a server are killed and started again.
"""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from ferryman.testing.parts import started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries
from ferryman.testing.receiver import Answer, ReceivedRequest, Receiver
from support.dispatching import Dispatch
from support.launch import KillAt, Launched, Launcher
from support.published import poll_until

pytestmark = [pytest.mark.serial("stacks"), pytest.mark.slow]

STEPS = ("claim rows", "send rows", "settle rows", "commit rows")


@pytest.fixture
def server() -> Iterator[LocalPostgres]:
    running = started(LocalPostgres(binaries(), FAST))
    yield running
    running.close()


@dataclass
class Trial:
    """Dispatchers, the dice that decide what fails, and what was done so far."""

    ferryman: Launcher
    server: LocalPostgres
    receiver: Receiver
    dice: random.Random
    running: list[Launched] = field(default_factory=list)
    doomed: list[Launched] = field(default_factory=list)
    """Dispatchers that kill themselves at a step, sooner or later."""
    done: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    well: bool = False

    def dispatch(self, db: "psycopg.Connection[tuple[object, ...]]") -> Dispatch:
        return Dispatch(self.ferryman, self.server.url, db, self.receiver, events=self.events)

    def write(self) -> None:
        """Record events. Nobody knows whether a COMMIT without an answer took effect: recording again finds out."""
        wanted = len(self.events) + self.dice.randrange(40)

        def written() -> bool:
            try:
                with psycopg.connect(self.server.url, autocommit=True) as db:
                    self.dispatch(db).write(wanted - len(self.events))
            except psycopg.OperationalError:
                return False
            return len(self.events) == wanted

        poll_until(written, "events")

    def answer(self, _: ReceivedRequest) -> Answer:
        """Fail half of the time; an answer that is cut may have been handled."""
        kind = 0.0 if self.well else self.dice.random()
        threading.Event().wait(kind / 20)  # an answer takes its time
        if kind < 0.5:
            return Answer(200)
        if kind < 0.65:
            return Answer(503)
        if kind < 0.8:
            return Answer(429, headers={"Retry-After": "0"})
        raise ConnectionError

    def start(self, kill_at: KillAt | None = None) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as db:
            launched = self.dispatch(db).start(kill_at, FERRYMAN_RUNNER__CAP_SECONDS="0.5")
        (self.doomed if kill_at else self.running).append(launched)

    def strike(self) -> None:
        name, fault = self.dice.choice([
            ("kill -9", self.kill), ("kill -9 at a step", self.kill_at_a_step), ("SIGTERM", self.end),
            ("crash of PostgreSQL", self.crash), ("connections cut", self.cut),
        ])  # fmt: skip
        self.done.append(name)
        print(name)  # with the seed it says how to come here again
        fault()
        time.sleep(self.dice.random())

    def taken(self) -> Launched:
        return self.running.pop(self.dice.randrange(len(self.running)))

    def kill(self) -> None:
        self.taken().kill()
        self.start()

    def kill_at_a_step(self) -> None:
        self.start(KillAt.before_step("courier", self.dice.choice(STEPS), self.dice.randrange(1, 20)))

    def end(self) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as db:
            self.dispatch(db).stop(self.taken())
        self.start()

    def crash(self) -> None:
        self.server.crash()
        self.server.start()

    def cut(self) -> None:
        """Cut every connection at once, during any statement or COMMIT."""
        with psycopg.connect(self.server.url, autocommit=True) as db:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
                       "AND pid <> pg_backend_pid()")  # fmt: skip


def break_at_random(ferryman: Launcher, server: LocalPostgres, seed: int, *, rounds: int) -> None:
    migrated = ferryman.run("migrate", "--for", "engine,runner", env={"FERRYMAN_DATABASE_URL": server.url})
    assert migrated.wait() == 0, migrated.transcript()
    with Receiver() as receiver:
        trial = Trial(ferryman, server, receiver, random.Random(seed))
        receiver.answer = trial.answer
        for _ in range(3):
            trial.start()
        for _ in range(rounds):
            trial.write()
            trial.strike()
        for each in trial.running + trial.doomed:
            each.kill()
        trial.well = True
        with psycopg.connect(server.url, autocommit=True) as db:
            dispatch = trial.dispatch(db)
            dispatch.expire()
            heirs = dispatch.start(), dispatch.start()
            dispatch.await_delivery(heirs[0], 60)
            dispatch.stop(*heirs)
            print(
                f"{len(dispatch.events)} events, {len(receiver.requests)} requests, {len(dispatch.doubled())} doubled"
            )
            assert dispatch.miscounted() == [], trial.done


@pytest.mark.timeout(120)
def test_whatever_dies_every_event_arrives_unaltered(ferryman: Launcher, server: LocalPostgres, seed: int) -> None:
    """Run the short form of the proof below."""
    break_at_random(ferryman, server, seed, rounds=8)


@pytest.mark.prove
def test_whatever_dies_for_minutes_every_event_arrives_unaltered(
    ferryman: Launcher, server: LocalPostgres, seed: int
) -> None:
    """Slow, to hit rare moments: leases run out meanwhile."""
    break_at_random(ferryman, server, seed, rounds=100)
