"""Sweeps of an outbox by Celery: on an interval, and at the commit of a transaction of Django.

    app = Celery("shop", broker=...)
    app.conf.beat_schedule = {"ferryman.sweep": beat_entry()}

To import this module registers the task `ferryman.sweep`. It needs the extra `celery`; only `on_commit` needs Django.
"""

import threading
from dataclasses import asdict
from typing import Any

from celery import shared_task

from ferryman.cli import wiring

_EXPIRES_AFTER = 0.9
"""The share of the interval after which a sweep that no worker has begun is dropped: the next one is about to come."""


@shared_task(name="ferryman.sweep", ignore_result=True)  # type: ignore[untyped-decorator] # Celery has no types
def sweep(outbox: str = "runner") -> dict[str, float]:
    """Send the rows that are due now, as `ferryman drain` does, and return the counts.

    It claims nothing more once `runner.sweep_seconds` have passed, so it ends within these and `http.timeout_seconds`.
    Any number of sweeps may run at once, also beside `ferryman run`.
    """
    settings, stopping = wiring.settings_here(), threading.Event()
    bound = threading.Timer(_interval(settings), stopping.set)
    bound.daemon = True
    bound.start()
    try:
        return asdict(wiring.drain(outbox, settings, stopping))
    finally:
        bound.cancel()


def beat_entry(outbox: str = "runner") -> dict[str, Any]:
    """Return the entry of a beat schedule: a sweep every `runner.sweep_seconds`. Sweeps never pile up: each expires."""
    seconds = _interval(wiring.settings_here())
    return {"task": sweep.name, "args": (outbox,), "schedule": seconds, "options": _expiring(seconds)}


def on_commit(outbox: str = "runner", using: str | None = None) -> None:
    """Start a sweep when the current transaction of Django commits; a rollback starts none.

    It only makes delivery sooner. If the broker is away, Django logs that and the request succeeds; the next sweep of
    beat sends what was committed.
    """
    from django.db import transaction

    def trigger() -> None:  # Django logs its name, which a partial does not have
        sweep.apply_async((outbox,), retry=False, **_expiring(_interval(wiring.settings_here())))

    transaction.on_commit(trigger, using=using, robust=True)


def _expiring(seconds: float) -> dict[str, float]:
    return {"expires": seconds * _EXPIRES_AFTER}


def _interval(settings: Any) -> float:
    return float(settings.runner.sweep_seconds)
