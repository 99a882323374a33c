"""What is decided about an entry: outcomes as values, and pure functions from one to what comes next."""

from dataclasses import dataclass, field
from typing import TypeAlias

from ferryman.runtime import codes
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Permanent, Transient, Unreachable
from ferryman.runtime.redaction import redact

MOST_ERROR_CHARACTERS = 500
PAUSED = "it is paused"
"""Why entries wait for a topic that a person held back."""


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed for a reason of its own, and may succeed later."""

    error: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """It cannot succeed as it is."""

    error: str


@dataclass(frozen=True, slots=True)
class Waits:
    """It was not tried: it stands behind another of its key, or its topic is parked or paused."""


@dataclass(frozen=True, slots=True)
class TopicUnavailable:
    """Its topic refuses everything for now: no attempt of the entry's is burned."""

    error: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have arrived. Unknown is not failed: it is sent again, with the same id and bytes."""

    error: str


Outcome: TypeAlias = Retry | Rejected | Waits | TopicUnavailable | Unknown
"""What became of an entry that was not simply delivered."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how long an entry is tried before it is FAILED."""

    limit: int = 5
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True, slots=True)
class Standing:
    """How an exception stands from now on; the delay is until its next attempt."""

    status: str
    attempts: int
    delay_seconds: float | None = None
    error: str | None = None


def after(outcome: Outcome, attempts: int, retries: Retries, *, dice: float) -> Standing | None:
    """How an entry with so many failed attempts stands after this outcome; None leaves it as it was."""
    match outcome:
        case Rejected(error):
            return Standing("FAILED", attempts + 1, error=error)
        case Retry(error) if attempts + 1 >= retries.limit:
            return Standing("FAILED", attempts + 1, error=error)
        case Retry(error):
            delay = retries.backoff.delay_seconds(attempts + 1, dice=dice)
            return Standing("RETRYING", attempts + 1, delay, error)
        case TopicUnavailable() | Waits():
            return Standing("PARKED", attempts)
        case Unknown():
            return None


# Refusals of a whole topic, whatever the entry.
_OF_TOPIC = frozenset(
    {
        "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "INVALID_REQUIRED_ACKS", "KAFKA_STORAGE_ERROR", "POLICY_VIOLATION",
        "UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    }
)  # fmt: skip

# What librdkafka says of entries that it gave up because of another's error.
_CONSEQUENCES = frozenset(
    {"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_GAPLESS_GUARANTEE", "_FATAL", "_MSG_TIMED_OUT", "_STATE"}
)


def is_consequence(code: str) -> bool:
    return code in _CONSEQUENCES


def judge(code: str, words: str) -> Retry | Rejected | TopicUnavailable | Unknown:
    """What a Kafka error, by librdkafka's name for it, means for the entry it was reported of."""
    error = stored_error(f"Kafka: {words} ({code})")
    if is_consequence(code):
        return Unknown(error)
    if code in _OF_TOPIC:
        return TopicUnavailable(error)
    family = codes.kafka(code).family
    if issubclass(family, Permanent):
        return Rejected(error)
    if issubclass(family, Transient) and not issubclass(family, Unreachable):
        return Retry(error)
    return Unknown(error)  # the cluster is away, or refuses this client as a whole


def stored_error(words: str) -> str:
    """As it may stand in the database: one line, no secret, not too long."""
    line = redact(" ".join(words.replace("\0", "").split()))
    return line if len(line) <= MOST_ERROR_CHARACTERS else line[: MOST_ERROR_CHARACTERS - 1] + "…"
