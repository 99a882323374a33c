"""Whether everything a process depends on is there and fit, a line per check, with a remedy for what is not."""

from collections.abc import Iterator

from ferryman.doctor import kafka, postgres, registry
from ferryman.doctor.model import Check, Status
from ferryman.runtime.settings import Settings

__all__ = ["Check", "Status", "examine"]


def examine(settings: Settings) -> Iterator[Check]:
    """Every check, in the order a person would ask; one that cannot be made says so and the rest go on."""
    yield from postgres.checks(settings)
    yield from kafka.checks(settings)
    yield from registry.checks(settings)
