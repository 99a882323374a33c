"""What is told of steps once they are committed: counts, and a warning for each saga that now waits for a person."""

from collections.abc import Sequence

import structlog

from ferryman.saga import metrics
from ferryman.saga.machine import Machine
from ferryman.saga.store import Moved

log = structlog.get_logger(__name__)


def moved(machine: Machine, steps: Sequence[Moved]) -> None:
    """Best effort: the database says the same, and the gauges ask it."""
    metrics.moved(machine.name, [each.state for each in steps])
    for each in steps:
        if each.due is None and each.state not in machine.terminals:
            log.warning(
                "waits for a person", machine=machine.name, saga=str(each.key), state=each.state, attempt=each.attempt,
                reason=each.reason,
            )  # fmt: skip
