"""Metrics and log lines of sagas."""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import get_args

import structlog

from ferryman.runtime.metrics import Named
from ferryman.saga.answers import StrayReason
from ferryman.saga.machine import Machine
from ferryman.saga.store import Moved

log = structlog.get_logger(__name__)

_METERS = Named("ferryman_saga_", ["machine"], ())

MOVES = _METERS.counter("moves_total", "Steps of sagas, by the state that they led to.", ["machine", "state"])
STRAYS = _METERS.counter(
    "strays_total", "Results that changed nothing, by reason: LATE, UNKNOWN or FORGED.", ["machine", "why"]
)
TIMEOUTS = _METERS.counter("timeouts_total", "Sagas that were looked at because they were due.")
UNMOVED = _METERS.counter(
    "unmoved_total", "Times that a due saga could not be moved; the log says which saga, and why."
)
ON_THEIR_WAY = _METERS.gauge("on_their_way", "Sagas that go on by themselves, by state.", ["machine", "state"])
WAITING_FOR_PERSON = _METERS.gauge(
    "waiting_for_person", "Sagas that wait for a person, by state.", ["machine", "state"]
)
LISTENING = _METERS.gauge("listening", "1 while time counts, 0 while somebody does not listen and it stands still.")
OVERDUE = _METERS.gauge("overdue_seconds", "How long the first due saga has been due.")


def report_moves(machine: Machine, moves: Sequence[Moved]) -> None:
    """Count committed steps, and log a warning for each saga that now waits for a person."""
    for state, many in Tally(each.state for each in moves).items():
        MOVES.labels(machine.name, state).inc(many)
    for each in moves:
        if each.due is None and each.state not in machine.terminals:
            log.warning(
                "waits for a person", machine=machine.name, saga=str(each.key), state=each.state, attempt=each.attempt,
                reason=each.reason,
            )  # fmt: skip


def count_strays(machine: str, reasons: Sequence[str]) -> None:
    for why, many in Tally(reasons).items():
        STRAYS.labels(machine, why).inc(many)


def begin(machine: str) -> None:
    """Create the counters of strays at 0, so that the first stray shows as an increase."""
    for why in get_args(StrayReason):
        STRAYS.labels(machine, why)
