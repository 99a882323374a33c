"""The payment orchestrator as a process of its own: as `ferryman run payments`, and it notes when each is applied."""

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from ferryman import Consumer, Outcome, Received, use_schemas
from ferryman.consumer.service import ConsumerService
from ferryman.runtime import logs
from ferryman.runtime.garbage import collect_less
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from ferryman.saga.service import DueLoop
from ferryman.services.payments.service import NAME, RESULTS, rules_of, sagas


class Watch:
    """Ends the process's services when enough is applied."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.stopping = threading.Event()
        self.applied: dict[str, float] = {}
        self.count = 0
        self.ended = 0.0
        self._batch: list[str] = []

    def came(self, results: Sequence[Received]) -> None:
        self._batch = [str(each.data["request_id"]) for each in results]

    def before(self, step: str) -> None:
        if step == "offsets":  # the step behind COMMIT
            self.ended = time.time()
            self.count += len(self._batch)
            if self.wanted["delays"]:
                self.applied.update((each, self.ended) for each in self._batch)
            self._batch = []
            if self.count >= self.wanted["payments"]:
                self.stopping.set()


def run(wanted: dict[str, Any]) -> dict[str, Any]:
    settings = Settings.model_validate(
        {"database_url": wanted["database_url"], "kafka": wanted["kafka"], "payments": {"events": wanted["events"]}}
    )
    logs.configure(settings.log)  # to standard error: standard output is for the outcome
    use_schemas()
    engine = sagas(rules_of(settings))
    watch = Watch(wanted)
    made = Consumer(NAME, ["wallet.results"], connection=psycopg.Connection, unknown="reject", rereport=False)
    made.after_commit(engine.tell)

    @made.handles_batch(*RESULTS)
    def noted(db: psycopg.Connection[tuple[Any, ...]], results: Sequence[Received]) -> Sequence[Outcome]:
        watch.came(results)
        return engine.apply(db, results)

    timeouts = threading.Thread(
        target=DueLoop(engine, settings).run, args=(Life("payment-timeouts", watch.stopping),), daemon=True
    )
    collect_less()
    cpu = time.process_time()
    timeouts.start()
    ConsumerService(made, settings, before=watch.before).run(Life("payments", watch.stopping))
    return {"ended": watch.ended, "applied": watch.applied, "cpu_seconds": time.process_time() - cpu}


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
