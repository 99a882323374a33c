"""The property names that librdkafka knows: a misspelt one is refused before a client is created."""

import difflib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Kafka

# Ferryman sets these itself, from its own settings.
_OURS = {"bootstrap.servers": "kafka.bootstrap_servers", "metadata.broker.list": "kafka.bootstrap_servers"}

# Properties that the guarantees depend on, with the only values that do not break them.
_NEEDED: dict[str, set[str]] = {
    "acks": {"all", "-1"},
    "request.required.acks": {"all", "-1"},
    "enable.idempotence": {"true"},
    "enable.gapless.guarantee": {"true"},
    "message.timeout.ms": {"0"},
    "delivery.timeout.ms": {"0"},
    "message.send.max.retries": {"2147483647"},
    "retries": {"2147483647"},
    "delivery.report.only.error": {"true"},
    "allow.auto.create.topics": {"false"},
    "queuing.strategy": {"fifo"},
    "enable.auto.commit": {"false"},
    "isolation.level": {"read_committed"},
    "partitioner": {"murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a"},
    "transactional.id": set(),
}
# Properties that verify a broker's identity, with the values that switch the check off.
_TRUST = {
    "enable.ssl.certificate.verification": {"false"},
    "ssl.endpoint.identification.algorithm": {"none"},
}


@cache
def names() -> frozenset[str]:
    """Return the names that `scripts/librdkafka_properties.py` read out of the library."""
    return frozenset(files("ferryman.runtime").joinpath("librdkafka_properties.txt").read_text().split())


def spelled(words: str) -> str | None:
    """Return the property for an environment name, which has underscores in place of dots; None if there is none."""
    known = {name.replace(".", "_"): name for name in names()}
    found = known.get(words, words.replace("_", "."))
    return found if is_known(found) else None


def is_known(name: str) -> bool:
    """Return True if librdkafka knows the property: a name that our list lacks is tried in the installed library."""
    if name in names():
        return True
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": "0", name: ""})
    except KafkaException as error:
        return "No such configuration property" not in str(error)
    return True


def check(kafka: Kafka) -> Iterator[Misconfigured]:
    """Yield an error for each property under [kafka] that is unknown, dangerous or set by Ferryman."""
    for name, value in kafka.properties.items():
        if ours := _OURS.get(name):
            yield Misconfigured(f"{name} is set as a librdkafka property", setting=ours, remedy=f"write it as {ours}")
        elif name in _NEEDED and value.lower() not in _NEEDED[name] and not kafka.allow_message_loss:
            yield Misconfigured(
                f"kafka.{name} = {value} breaks the guarantees",
                setting="kafka.allow_message_loss",
                remedy=f"leave {name} out; set kafka.allow_message_loss only to accept lost and reordered messages",
            )
        elif name in _TRUST and value.lower() in _TRUST[name] and not kafka.allow_unverified_brokers:
            yield Misconfigured(
                f"kafka.{name} = {value} switches off the check of the broker's certificate",
                setting="kafka.allow_unverified_brokers",
                remedy="name the authority with ssl.ca.location; set kafka.allow_unverified_brokers only for tests",
            )
        elif not is_known(name):
            close = difflib.get_close_matches(name, names(), n=1, cutoff=0.6)
            yield Misconfigured(
                f"unknown setting kafka.{name}: no librdkafka property has that name",
                remedy=f"did you mean {close[0]}?" if close else "librdkafka's CONFIGURATION.md lists every property",
            )
