"""What sagas count."""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import get_args

from ferryman.runtime.metrics import Named
from ferryman.saga.model import Why

_METERS = Named("ferryman_saga_", ["machine"], ())

MOVES = _METERS.counter("moves_total", "Steps of sagas, by the state that they led to.", ["machine", "state"])
STRAYS = _METERS.counter(
    "strays_total", "Results that were applied to nothing: LATE, UNKNOWN or FORGED.", ["machine", "why"]
)
TIMEOUTS = _METERS.counter("timeouts_total", "Sagas that were looked at because their time had come.")
UNMOVED = _METERS.counter(
    "unmoved_total", "Times that a saga could not be moved when its time had come; the log says which, and why."
)
ON_THEIR_WAY = _METERS.gauge("on_their_way", "Sagas that go on by themselves, by state.", ["machine", "state"])
WAITING_FOR_PERSON = _METERS.gauge(
    "waiting_for_person", "Sagas that nothing moves before a person acts, by state.", ["machine", "state"]
)
OVERDUE = _METERS.gauge("overdue_seconds", "How long the first saga has waited to be looked at since its time came.")


def moved(machine: str, states: Sequence[str]) -> None:
    for state, many in Tally(states).items():
        MOVES.labels(machine, state).inc(many)


def strays(machine: str, whys: Sequence[str]) -> None:
    for why, many in Tally(whys).items():
        STRAYS.labels(machine, why).inc(many)


def begin(machine: str) -> None:
    """From nought, so that the first stray is seen to be one more."""
    for why in get_args(Why):
        STRAYS.labels(machine, why)
