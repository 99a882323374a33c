"""The property names librdkafka knows, so that a misspelt one is refused with a suggestion before a client is made."""

import difflib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Kafka

# Ferryman sets these itself, from settings of its own.
_OURS = {"bootstrap.servers": "kafka.bootstrap_servers", "metadata.broker.list": "kafka.bootstrap_servers"}

# Properties the guarantees stand on, with the only values that do not harm them.
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
# Properties that decide whether a broker is who it says, with the values that do not ask.
_TRUST = {
    "enable.ssl.certificate.verification": {"false"},
    "ssl.endpoint.identification.algorithm": {"none"},
}


@cache
def names() -> frozenset[str]:
    """As `scripts/librdkafka_properties.py` read them out of the library."""
    return frozenset(files("ferryman.runtime").joinpath("librdkafka_properties.txt").read_text().split())


def spelled(words: str) -> str | None:
    """The property that an environment name stands for, which has underscores where the property has dots."""
    known = {name.replace(".", "_"): name for name in names()}
    if found := known.get(words):
        return found
    dotted = words.replace("_", ".")
    return dotted if is_known(dotted) else None


def is_known(name: str) -> bool:
    """A name that is not in our list may be newer than the list: then the installed library is asked."""
    return name in names() or _accepted(name)


def check(kafka: Kafka) -> Iterator[Misconfigured]:
    """What is wrong with the properties that stand under [kafka]: unknown, ours to set, or dangerous."""
    for name, value in kafka.properties.items():
        if ours := _OURS.get(name):
            yield Misconfigured(f"{name} is set as a librdkafka property", setting=ours, remedy=f"write it as {ours}")
        elif name in _NEEDED and value.lower() not in _NEEDED[name] and not kafka.allow_message_loss:
            yield Misconfigured(
                f"kafka.{name} = {value} takes away what the guarantees stand on",
                setting="kafka.allow_message_loss",
                remedy=f"leave {name} out; only who accepts lost and reordered messages sets kafka.allow_message_loss",
            )
        elif name in _TRUST and value.lower() in _TRUST[name] and not kafka.allow_unverified_brokers:
            yield Misconfigured(
                f"kafka.{name} = {value} switches the check of a broker's certificate off",
                setting="kafka.allow_unverified_brokers",
                remedy="name the authority with ssl.ca.location; only for tests set kafka.allow_unverified_brokers",
            )
        elif not is_known(name):
            close = difflib.get_close_matches(name, names(), n=1, cutoff=0.6)
            yield Misconfigured(
                f"unknown setting kafka.{name}: no librdkafka property has that name",
                remedy=f"did you mean {close[0]}?" if close else "librdkafka's CONFIGURATION.md lists every property",
            )


def _accepted(name: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": "0", name: ""})
    except KafkaException as error:
        return "No such configuration property" not in str(error)
    return True
