"""What becomes of messages whose handling failed: tried again in parts, held back, or rejected when it is enough.

A failure of many is nobody's yet. Each partition is tried by itself, then its halves, down to the one message that
fails alone; only that one is counted, and only it waits, with what is behind it in its partition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from ferryman.consumer import metrics
from ferryman.consumer.buffers import Buffer, Buffers
from ferryman.consumer.faults import HandlerFailed, NotNow, SessionLost, TookTooLong, Undecided
from ferryman.consumer.model import Partition, Record
from ferryman.consumer.policy import Policy
from ferryman.runtime.errors import Transient

log = structlog.get_logger(__name__)

BUG, TIMED_OUT = "BUG", "TIMED_OUT"

Setback: TypeAlias = NotNow | Undecided | Transient | HandlerFailed


@dataclass(slots=True)
class Setbacks:
    """Of one worker's partitions."""

    consumer: str
    policy: Policy
    buffers: Buffers
    _lost: dict[Partition, tuple[int, float]] = field(default_factory=dict)
    """Of what stands in front and has lost its session alone: its offset, and how long it was tried and held so."""

    def failed(
        self, records: Sequence[Record], error: Setback, now: float, seconds: float = 0.0
    ) -> tuple[str, str] | None:
        """The code and words to reject it with, where one alone was tried enough, or for long enough; the last try
        took so many seconds.
        """
        if len(records) == 1 and isinstance(error, SessionLost):
            return self._cut_off(records[0], error, now, seconds)
        if len(records) == 1:
            return self._alone(records[0], error, now)
        parts: dict[Partition, list[Record]] = {}
        for each in records:
            parts.setdefault(each.place, []).append(each)
        for place, part in parts.items():
            buffer = self.buffers.by_place[place]
            # What passes may be past: the same once more, before it is taken apart. What took too long took its time.
            again = isinstance(error, Transient) and not isinstance(error, TookTooLong) and not buffer.ends
            buffer.take_apart(part, halve=len(parts) == 1 and not again)
            if isinstance(error, Transient):
                buffer.held_until = now + self.policy.backoff.delay_seconds(1)
        if isinstance(error, Transient):
            self._say(records, error, 1, self.policy.backoff.delay_seconds(1))
        return None

    def _alone(self, record: Record, error: Setback, now: float) -> tuple[str, str] | None:
        """Its handler's bugs are counted, and what passes by the time since it was first seen. What nobody can read
        yet waits as long as that takes.
        """
        buffer = self.buffers.by_place[record.place]
        buffer.take_apart([record], halve=False)
        if isinstance(error, HandlerFailed):
            buffer.bugs += 1
            if buffer.bugs >= self.policy.tries:
                return BUG, str(error)
        elif not isinstance(error, Undecided):
            buffer.failing_since = now if buffer.failing_since is None else buffer.failing_since
            if now - buffer.failing_since > self.policy.retry_seconds:
                return TIMED_OUT, str(error)
        self.hold(buffer, record, error, now)
        return None

    def _cut_off(self, record: Record, error: SessionLost, now: float, seconds: float) -> tuple[str, str] | None:
        """Its sessions end, and nobody can tell whether it ends them or somebody else does. Only its own tries count,
        each with its wait: no time in which the server is away. Who ends all sessions now and then would have to meet
        this one in each of some dozen tries.
        """
        buffer = self.buffers.by_place[record.place]
        buffer.take_apart([record], halve=False)
        offset, tried = self._lost.get(record.place, (record.offset, 0.0))
        tried = seconds + (tried if offset == record.offset else 0.0)
        if tried > self.policy.retry_seconds:
            return TIMED_OUT, str(error)
        self.hold(buffer, record, error, now)
        self._lost[record.place] = record.offset, tried + buffer.held_until - now
        return None

    def hold(self, buffer: Buffer, record: Record, error: Setback, now: float) -> None:
        """It is tried again after a while, longer each time; `Retry` may ask for more, within its bound."""
        buffer.attempts += 1
        wait = self.policy.backoff.delay_seconds(buffer.attempts)
        if isinstance(error, NotNow):
            since = now if buffer.failing_since is None else buffer.failing_since
            left = since + self.policy.retry_seconds - now
            wait = max(wait, min(error.retry.after_seconds, left))
        buffer.held_until = now + wait
        self._say([record], error, buffer.attempts, wait)

    def _say(self, records: Sequence[Record], error: Setback, attempt: int, wait: float) -> None:
        metrics.RETRIES.labels(self.consumer).inc(len(records))
        log.warning("handling failed", consumer=self.consumer, messages=len(records), first=str(records[0]),
                    attempt=attempt, again_in_seconds=round(wait, 1), error=str(error)[:500])  # fmt: skip
