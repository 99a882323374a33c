"""Outcomes of a delivery as values, and pure functions that decide what follows from them."""

from dataclasses import dataclass, field
from typing import TypeAlias

from ferryman.channels.outcome import Held, Rejected, Retry, Unavailable, Unknown
from ferryman.runtime import codes
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Permanent, Transient, Unreachable
from ferryman.runtime.redaction import stored_error
from ferryman.runtime.settings_outbox import OutboxRetry
from ferryman.runtime.settings_relay import RelayRetry

PAUSED = "it is paused"
"""The reason that is recorded while a person holds a topic back."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The entry was not tried: it is behind another of its key, or its topic is parked or paused."""


Undelivered: TypeAlias = Retry | Rejected | Waits | Unavailable | Unknown | Held
"""The result of an entry that was not simply delivered. Where it is Unavailable, its topic refuses everything."""


@dataclass(frozen=True, slots=True)
class Retries:
    """The number of attempts before an entry is FAILED, and the waits between them."""

    limit: int = 5
    backoff: Backoff = field(default_factory=Backoff)


def retries_of(retry: RelayRetry | OutboxRetry) -> Retries:
    """Return the settings as a policy."""
    longest = max(retry.base_seconds, retry.cap_seconds)
    return Retries(retry.limit, Backoff(retry.base_seconds, longest, retry.offset, retry.jitter))


@dataclass(frozen=True, slots=True)
class ExceptionState:
    """The status that is recorded for an entry; the delay is the time until its next attempt."""

    status: str
    attempts: int
    delay_seconds: float | None = None
    error: str | None = None


def after(outcome: Undelivered, attempts: int, retries: Retries, *, dice: float) -> ExceptionState | None:
    """Return the state of an entry after this outcome, given its failed attempts so far; None changes nothing."""
    match outcome:
        case Rejected(error) | Held(error):
            return ExceptionState("FAILED", attempts + 1, error=error)
        case Retry(error) if attempts + 1 >= retries.limit:
            return ExceptionState("FAILED", attempts + 1, error=error)
        case Retry(error):
            delay = retries.backoff.delay_seconds(attempts + 1, dice=dice)
            return ExceptionState("RETRYING", attempts + 1, delay, error)
        case Unavailable() | Waits():
            return ExceptionState("PARKED", attempts)
        case Unknown():
            return None


# Refusals of a whole topic, whatever the entry. An invalid timestamp is this machine's clock, or the broker's.
_OF_TOPIC = frozenset(
    {
        "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "INVALID_REQUIRED_ACKS", "KAFKA_STORAGE_ERROR", "POLICY_VIOLATION",
        "UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "INVALID_TIMESTAMP",
    }
)  # fmt: skip

# librdkafka reports these for entries that it gave up because of another entry's error.
_CONSEQUENCES = frozenset(
    {"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_GAPLESS_GUARANTEE", "_FATAL", "_MSG_TIMED_OUT", "_STATE"}
)


def is_consequence(code: str) -> bool:
    """Return True if librdkafka reports this code because of another entry's error."""
    return code in _CONSEQUENCES


def judge(code: str, words: str) -> Retry | Rejected | Unavailable | Unknown:
    """Return what a Kafka error, by librdkafka's name for it, means for the entry it was reported for."""
    error = stored_error(f"Kafka: {words} ({code})")
    if is_consequence(code):
        return Unknown(error)
    if code in _OF_TOPIC:
        return Unavailable(error)
    family = codes.kafka(code).family
    if issubclass(family, Permanent):
        return Rejected(error)
    if issubclass(family, Transient) and not issubclass(family, Unreachable):
        return Retry(error)
    return Unknown(error)  # the cluster is away, or refuses this client as a whole
