"""The wallet's consumer as a process of its own: handles so many messages of a topic, says when, and ends."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from ferryman import Consumer, Outcome, Received, use_schemas
from ferryman.consumer import metrics
from ferryman.consumer.service import ConsumerService
from ferryman.runtime import logs
from ferryman.runtime.garbage import collect_less
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from ferryman.services.wallet.consumer import KINDS, handle


@dataclass(slots=True)
class Watch:
    """Notes the time at each step of the consumer's loop, and ends it when enough was handled."""

    life: Life
    messages: int
    delays: bool
    began: float = 0.0
    ended: float = 0.0
    handled: int = 0
    batches: int = 0
    delays_ms: list[float] = field(default_factory=list)
    _since: list[int] = field(default_factory=list)

    def came(self, messages: Sequence[Received]) -> None:
        if self.delays:
            self._since += [each.record.timestamp_ms for each in messages]

    def before(self, step: str) -> None:
        if step == "find" and not self.began:
            self.began = time.perf_counter()
        if step == "sort":
            self._since.clear()  # what a batch noted that was taken apart comes again
        if step == "offsets":
            self._committed()

    def _committed(self) -> None:
        self.ended, now = time.perf_counter(), time.time() * 1000
        self.batches += 1
        self.delays_ms += [now - each for each in self._since]
        self._since.clear()
        self.handled = verdicts()
        if self.handled >= self.messages:
            self.life.stopping.set()


def verdicts() -> int:
    """So many messages have one, duplicates among them."""
    [counted] = metrics.MESSAGES.collect()
    return round(sum(each.value for each in counted.samples if each.name.endswith("_total")))


def consumer(name: str, topic: str, watch: Watch) -> Consumer:
    """The wallet's handler under a name and on a topic of the run's own."""
    made = Consumer(name, [topic], connection=psycopg.Connection, unknown="reject")

    @made.handles_batch(*KINDS)
    def noted(db: psycopg.Connection[tuple[Any, ...]], messages: Sequence[Received]) -> Sequence[Outcome]:
        watch.came(messages)
        return handle(db, messages)

    return made


def run(wanted: dict[str, Any]) -> dict[str, Any]:
    settings = Settings.model_validate({"database_url": wanted["database_url"], "kafka": wanted["kafka"]})
    logs.configure(settings.log)  # to standard error: standard output is for the outcome
    use_schemas()
    life = Life("wallet")
    watch = Watch(life, wanted["messages"], wanted["delays"])
    service = ConsumerService(consumer(wanted["name"], wanted["topic"], watch), settings, before=watch.before)
    collect_less()
    service.run(life)
    return {
        "handled": watch.handled, "batches": watch.batches, "seconds": watch.ended - watch.began,
        "delays_ms": watch.delays_ms,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
