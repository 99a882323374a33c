"""The runs of a proof: each arrangement of the messages, and each fault at each point that such a run meets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ferryman.testing.proving.fault_points import STATEMENT, Fault, faults
from ferryman.testing.proving.memory_kafka import MemoryTopics, SentMessage

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run: its name, the records in Kafka, the size of a batch, and what happens meanwhile."""

    name: str
    messages: tuple[SentMessage, ...]
    batch: int
    fault: Fault | None = None
    owners: int = 1
    replayed: bool = False
    by_key: bool = False
    """True if each key has a partition of its own."""
    in_order: bool = True
    """True if the handlers see the messages in the order of the plain run, so that their reports are the same."""

    def topics(self) -> MemoryTopics:
        """Return the topics as the run finds them."""
        return MemoryTopics.of(self.messages, by_key=self.by_key)


def undisturbed(messages: Sequence[SentMessage]) -> list[Scenario]:
    """Return the runs without a fault. The plain run is first: the others are compared with it."""
    found = [Scenario(PLAIN, tuple(messages), len(messages))]
    if len(messages) > 1:
        found.append(Scenario("each message in a batch of its own", tuple(messages), 1))
    return found


def disturbed(scenario: Scenario, points: Sequence[str]) -> Iterator[Scenario]:
    """Yield the scenario with each fault. For other runs than the plain one, only crashes between steps are tried."""
    plain = scenario.name == PLAIN
    for fault in faults(points, all_kinds=plain):
        if plain or not fault.point.startswith(STATEMENT):
            yield replace(scenario, name=str(fault) if plain else f"{fault}, {scenario.name}", fault=fault)


def arranged(messages: Sequence[SentMessage]) -> Iterator[Scenario]:
    """Yield the messages duplicated, replayed, with two owners at once, and reordered."""
    once, many = tuple(messages), len(messages)
    beside = tuple(each for message in messages for each in (message, message))
    yield Scenario("each message twice, in one batch", beside, 2 * many)
    yield Scenario("each message twice, the second time later", once + once, many)
    yield Scenario("replayed from offset 0", once, many, replayed=True)
    yield Scenario("two owners at once", once, many, owners=2, in_order=many == 1)
    keys = dict.fromkeys(message.key for message in messages)
    if len(keys) > 1:
        turned = tuple(each for key in reversed(keys) for each in messages if each.key == key)
        yield Scenario("keys in reverse order", turned, 1, by_key=True, in_order=False)
