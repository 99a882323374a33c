"""What the client of a group says is wrong, in our words: what it recovers from, and what ends it."""

from confluent_kafka import KafkaError

from ferryman.runtime.errors import FerrymanError, Permanent, Transient
from ferryman.runtime.kafka import translate


def is_fatal(error: KafkaError) -> bool:
    """Whether the client is of no use any more."""
    return error.fatal() or error.name() == "_FATAL"


def fatal(error: KafkaError, *, back: bool) -> FerrymanError:
    """Whether another client of the same name would fare better. Who has just lost its partitions and is back may be
    fenced by itself, when a commit of its former life arrives behind its return: then another does.
    """
    said = error.str()
    if "fenced" not in said.lower():
        return Permanent(f"Kafka: {said}", remedy="start it again; if it ends so again, see the brokers' logs")
    if back:
        return Transient(f"Kafka: {said}: it was away, and came back under its own name")
    return Permanent(
        f"Kafka: {said}", setting="consumer.instance_id",
        remedy="another process has this name: give each its own, and start this one again",
    )  # fmt: skip


def words(error: KafkaError, of: str = "") -> str:
    """Whether to wait for it, or to mend something."""
    said = translate(error)
    return f"Kafka {'is away' if isinstance(said, Transient) else 'refuses'}: {of}{said}"
