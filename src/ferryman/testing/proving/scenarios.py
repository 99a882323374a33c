"""What is tried: each arrangement of the messages, and each fault at each point that such a run meets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ferryman.testing.proving.faults import STATEMENT, Fault, faults
from ferryman.testing.proving.topic import Sent, Topics

PLAIN = "plain"


class Arrangement(NamedTuple):
    """What stands in Kafka, and how much of it is one batch."""

    messages: tuple[Sent, ...]
    batch: int
    by_key: bool = False

    @property
    def topics(self) -> Topics:
        return Topics.of(self.messages, by_key=self.by_key)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run, by its name."""

    name: str
    arrangement: Arrangement
    fault: Fault | None = None
    owners: int = 1
    replayed: bool = False
    in_order: bool = True
    """Its handlers see what those of the plain run see: their reports are the same."""


def undisturbed(messages: Sequence[Sent]) -> list[Scenario]:
    """The plain run first: the others are measured by it. The points that these meet are where faults strike."""
    found = [Scenario(PLAIN, Arrangement(tuple(messages), len(messages)))]
    if len(messages) > 1:
        found.append(Scenario("each message in a batch of its own", Arrangement(tuple(messages), 1)))
    return found


def disturbed(scenario: Scenario, points: Sequence[str]) -> Iterator[Scenario]:
    """The same with a fault; where it is not the plain run, only crashes between its steps."""
    plain = scenario.name == PLAIN
    for fault in faults(points, all_kinds=plain):
        if plain or not fault.point.startswith(STATEMENT):
            name = str(fault) if plain else f"{fault}, {scenario.name}"
            yield Scenario(name, scenario.arrangement, fault)


def arranged(messages: Sequence[Sent]) -> Iterator[Scenario]:
    """Duplicated, reordered, replayed, and with two owners at once."""
    once, many = tuple(messages), len(messages)
    beside = tuple(each for message in messages for each in (message, message))
    yield Scenario("each message twice, in one batch", Arrangement(beside, 2 * many))
    yield Scenario("each message twice, the second time later", Arrangement(once + once, many))
    yield Scenario("replayed from offset 0", Arrangement(once, many), replayed=True)
    yield Scenario("two owners at once", Arrangement(once, many), owners=2, in_order=many == 1)
    keys = dict.fromkeys(message.key for message in messages)
    if len(keys) > 1:
        turned = tuple(each for key in reversed(keys) for each in messages if each.key == key)
        yield Scenario("keys in reverse order", Arrangement(turned, 1, by_key=True), in_order=False)
