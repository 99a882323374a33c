"""The property names librdkafka knows, so that a misspelt one is refused with a suggestion before a client is made."""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from ferryman.runtime.errors import Misconfigured

# Ferryman sets these itself, from settings of its own.
_OURS = {"bootstrap.servers": "kafka.bootstrap_servers", "metadata.broker.list": "kafka.bootstrap_servers"}


@cache
def names() -> frozenset[str]:
    """As `scripts/librdkafka_properties.py` read them out of the library."""
    return frozenset(files("ferryman.runtime").joinpath("librdkafka_properties.txt").read_text().split())


def is_known(name: str) -> bool:
    """A name that is not in our list may be newer than the list: then the installed library is asked."""
    return name in names() or _accepted(name)


def check(properties: Mapping[str, str]) -> Iterator[Misconfigured]:
    for name in properties:
        if ours := _OURS.get(name):
            yield Misconfigured(f"{name} is set as a librdkafka property", setting=ours, remedy=f"write it as {ours}")
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
