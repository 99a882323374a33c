"""The demo itself: payments flow, one process after another is killed and comes back, and all of it is audited."""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from ferryman.demo.cast import NAMES, Cast
from ferryman.demo.client import Client

_LOOK_SECONDS = 0.25
_DEAD_SECONDS = 0.7
_SETTLE_SECONDS = 25.0
_STATUSES = "-- demo.statuses\nSELECT status, count(*) FROM payments.requests GROUP BY status"


@dataclass(slots=True)
class Moment:
    """How it stands: what a viewer is shown."""

    seconds: float
    act: str
    sent: int
    succeeded: int
    failed: int
    pending: int
    alive: dict[str, bool]
    killed: dict[str, int]
    happened: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Scene:
    """One run; `show` is told every moment of it."""

    cast: Cast
    client: Client
    orchestrator_url: str
    show: Callable[[Moment], None]
    dice: random.Random
    began: float = field(default_factory=time.monotonic)
    happened: list[str] = field(default_factory=list)
    act: str = "payments begin to flow"

    def play(self, seconds: float, kill_every: float) -> Moment:
        """Returns how it stood at the end, when no payment was on its way, or none came to an end any more."""
        with psycopg.connect(self.orchestrator_url, autocommit=True) as db:
            with self._paying():
                self._kill_by_turns(db, seconds, kill_every)
            self.act = "no more payments come: what is on its way arrives"
            self.cast.revive()
            deadline = time.monotonic() + _SETTLE_SECONDS
            while (moment := self._look(db)).pending and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
        return moment

    def _kill_by_turns(self, db: psycopg.Connection[tuple[object, ...]], seconds: float, kill_every: float) -> None:
        victims = itertools.cycle(self.dice.sample(NAMES, len(NAMES)))
        end, kill_at, revive_at = time.monotonic() + seconds, time.monotonic() + kill_every, 0.0
        while (now := time.monotonic()) < end and self.client.error is None:
            if now >= kill_at:
                self._kill(next(victims))
                kill_at, revive_at = now + kill_every, now + _DEAD_SECONDS
            if now >= revive_at:
                self.cast.revive()
            self._look(db)
            time.sleep(_LOOK_SECONDS)

    def _kill(self, name: str) -> None:
        self.cast.players[name].kill()
        self.act = f"kill -9 {name}"
        self.happened.append(f"{time.monotonic() - self.began:5.1f} s  kill -9 {name}")

    @contextmanager
    def _paying(self) -> Iterator[None]:
        thread = threading.Thread(target=self.client.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.client.stopping.set()
            thread.join()
        if self.client.error:
            raise self.client.error

    def _look(self, db: psycopg.Connection[tuple[object, ...]]) -> Moment:
        by_status: dict[object, object] = dict(db.execute(_STATUSES).fetchall())  # type: ignore[arg-type]
        count = {str(status): int(str(many)) for status, many in by_status.items()}
        players = self.cast.players.values()
        moment = Moment(
            time.monotonic() - self.began, self.act, self.client.sent, count.get("SUCCEEDED", 0),
            count.get("FAILED", 0), count.get("PENDING", 0), {each.name: each.alive for each in players},
            {each.name: each.killed for each in players}, self.happened[-6:],
        )  # fmt: skip
        self.show(moment)
        return moment
