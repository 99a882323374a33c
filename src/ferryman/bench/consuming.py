"""A consumer as a process of its own: it notes when batches are committed, and ends after so many messages.

It runs the wallet's consumer or the payment orchestrator as `ferryman run` would.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ferryman import Consumer, Outcome, Received, use_schemas
from ferryman.consumer import metrics
from ferryman.consumer.service import ConsumerService
from ferryman.runtime import logs
from ferryman.runtime.life import Life
from ferryman.runtime.service import collect_less
from ferryman.runtime.settings import Settings
from ferryman.runtime.system import settings_model
from ferryman.saga.timeouts import DueLoop
from ferryman.services import systems
from ferryman.services.payments import service as payments
from ferryman.services.payments.rules import WALLET
from ferryman.services.wallet import consumer as wallet

Handler = Callable[[psycopg.Connection[tuple[Any, ...]], Sequence[Received]], Sequence[Outcome]]


class CommitClock:
    """Notes when batches begin and when they are committed. Stops the process after enough messages."""

    def __init__(self, stopping: threading.Event, enough: int, *, notes_each: bool) -> None:
        self._stopping = stopping
        self._enough = enough
        self._notes_each = notes_each
        self._batch: list[Received] = []
        self.began = 0.0
        self.ended = 0.0
        self.handled = 0
        self.batches = 0
        self.committed: list[tuple[str, int, float]] = []
        """The request, the record's time in milliseconds and the time of the commit of each new message."""

    def around(self, handle: Handler) -> Handler:
        """Return the handler that also tells the clock about each batch."""

        def noted(db: psycopg.Connection[tuple[Any, ...]], messages: Sequence[Received]) -> Sequence[Outcome]:
            if self._notes_each:
                self._batch += messages
            return handle(db, messages)

        return noted

    def before(self, step: str) -> None:
        """Note the time of a step of the consumer's loop."""
        if step == "find" and not self.began:
            self.began = time.time()
        if step == "sort":
            self._batch.clear()  # the messages of a batch that was taken apart come again
        if step == "offsets":  # the step after COMMIT
            self.ended = time.time()
            self.batches += 1
            self.committed += [
                (str(each.data["request_id"]), each.record.timestamp_ms, self.ended) for each in self._batch
            ]
            self._batch.clear()
            self.handled = _verdicts()
            if self.handled >= self._enough:
                self._stopping.set()


def _verdicts() -> int:
    """Return how many messages have a verdict, duplicates included."""
    [counted] = metrics.MESSAGES.collect()
    return round(sum(each.value for each in counted.samples if each.name.endswith("_total")))


def run(task: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Run the wallet's handler under a name and on a topic of this run's own, or the orchestrator with its timeouts."""
    stopping = threading.Event()
    clock = CommitClock(stopping, task["messages"], notes_each=task["delays"])
    if "topic" in task:
        consumer = Consumer(task["name"], [task["topic"]], connection=psycopg.Connection, unknown="reject")
        consumer.handles_batch(*wallet.KINDS)(clock.around(wallet.handle))
    else:
        saga = payments.rules_of(settings).saga
        engine = saga.engine
        consumer = Consumer(
            WALLET.consumer, [WALLET.topic], connection=psycopg.Connection, unknown="reject", rereport=False
        )
        consumer.handles_batch(*saga.types)(clock.around(engine.apply))
        consumer.after_commit(engine.tell)
        timeouts, life = DueLoop(engine, settings), Life("payment-timeouts", stopping)
        threading.Thread(target=timeouts.run, args=(life,), daemon=True).start()
    collect_less()
    cpu = time.process_time()
    ConsumerService(consumer, settings, before=clock.before).run(Life(consumer.name, stopping))
    return {
        "handled": clock.handled, "batches": clock.batches, "seconds": clock.ended - clock.began,
        "ended": clock.ended, "cpu_seconds": time.process_time() - cpu,
        "committed": clock.committed,
    }  # fmt: skip


if __name__ == "__main__":
    given = json.load(sys.stdin)
    found = settings_model(systems()).model_validate(given["settings"])
    logs.configure(found.log)  # to standard error: standard output is for the result
    use_schemas()
    print(json.dumps(run(given, found)))
