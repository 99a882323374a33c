"""The values of a consumer: records as Kafka has them, messages as handlers get them, and the answers of handlers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from ferryman.message import Message, Refused, only_messages
from ferryman.schemas import headers

BY_ID = (headers.ID,)
"""The default of `Consumer.id_from`: a `ce_id` that is a UUID is the message's id, whatever its source."""
BY_SOURCE_AND_ID = (headers.SOURCE, headers.ID)
"""The identity of CloudEvents: two sources may use the same id for two messages."""

Partition: TypeAlias = tuple[str, int]
"""A topic and the number of one of its partitions."""


class Position(NamedTuple):
    """The next offset of a partition, and the id of its topic if Kafka tells it."""

    offset: int
    topic_id: str | None = None


class Advance(NamedTuple):
    """The move of a position by a batch."""

    was: int | None
    """The offset that this process last left in the database. With another one, the database was put back."""
    to: Position


class Record(NamedTuple):
    """A record as it is in Kafka. Any part may be missing, and none has to be text."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    no_headers: str | None = None
    """The reason why its headers could not be read; `headers` is empty then."""

    @property
    def place(self) -> Partition:
        return self.topic, self.partition

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header with this name."""
        for known, value in reversed(self.headers):
            if known == name:
                return value
        return None

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] at offset {self.offset}"


@dataclass(frozen=True)
class Received:
    """A decoded message. `data` is decoded by its schema, parsed from its JSON, or else its bytes."""

    id: UUID
    type: str
    data: Any
    key: str
    record: Record
    hash: bytes

    @cached_property
    def headers(self) -> Mapping[str, str]:
        return {name: (value or b"").decode("utf-8", "replace") for name, value in self.record.headers}

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def traceparent(self) -> str | None:
        value = self.record.header("traceparent")
        return None if value is None else value.decode("utf-8", "replace")

    def __str__(self) -> str:
        return f"{self.type} {self.id} ({self.record})"


class Poison(NamedTuple):
    """A record that cannot be handled, with the code and the error to reject it with."""

    record: Record
    id: UUID
    type: str
    hash: bytes
    code: str
    error: str


class Done:
    """The message took effect; `reports` are the messages that tell of it."""

    __slots__ = ("reports",)

    def __init__(self, *reports: Message) -> None:
        self.reports = only_messages(reports)

    def __repr__(self) -> str:
        return f"Done{self.reports!r}"


class Retry:
    """The message cannot be handled now: roll back what the handler wrote, and try again after this time."""

    __slots__ = ("after_seconds", "reason")

    def __init__(self, reason: str, after_seconds: float | timedelta = 0.0) -> None:
        self.reason = reason
        self.after_seconds = after_seconds.total_seconds() if isinstance(after_seconds, timedelta) else after_seconds

    def __repr__(self) -> str:
        return f"Retry({self.reason!r}, {self.after_seconds})"


Outcome: TypeAlias = Done | Refused | Retry
Item: TypeAlias = Received | Poison
