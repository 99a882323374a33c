"""Clients of Kafka: one place builds their configuration and translates their errors."""

import logging
import time
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from ferryman.runtime import codes
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.redaction import redact
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError, KafkaException, Message
    from confluent_kafka.admin import AdminClient, NewTopic

log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 0.02
_MOST_NAME_BYTES = 100
# Called so, what the library returns is looked at each time. The interpreter's own way leaves that out once a call has
# become frequent: an error that was set would come up later, wherever that is, and the headers hold a null pointer.
_HEADERS = methodcaller("headers")
_FENCED = "currently fenced"
"""A broker that was not heard of for a while, and will be again: nothing is placed on it until then."""


def client_config(kafka: Kafka, process: str, **ours: Any) -> dict[str, Any]:
    """What every client of ours starts from: the user's properties, then what the caller insists on."""
    if not kafka.bootstrap_servers:
        raise Misconfigured(
            "no Kafka cluster is named", setting="kafka.bootstrap_servers", remedy="set it to host:port"
        )
    base: Mapping[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "client.id": f"ferryman-{process}",
        "log_level": 1,  # what goes wrong comes as an error; librdkafka would say it again with each attempt
        "logger": log,
    }
    return {**base, **kafka.properties, **ours}


def admin(kafka: Kafka, process: str, **ours: Any) -> "AdminClient":
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        return AdminClient(client_config(kafka, process, **ours))
    except KafkaException as error:
        raise translate(error) from error


def headers_of(message: "Message") -> list[tuple[str, bytes | None]]:
    """Of a record that came. Raises `ValueError` where a name among them is no text in UTF-8: to Kafka it is bytes.

    Such a message must not be asked again: what the library gives then holds a null pointer.
    """
    try:
        given: Any = _HEADERS(message)
    except (SystemError, UnicodeDecodeError) as error:
        name = getattr(error.__cause__ or error, "object", b"")
        raise ValueError(f"the name of one of its headers is no text in UTF-8: {name[:_MOST_NAME_BYTES]!r}") from error
    return given or []


def create_topics(client: "AdminClient", topics: "Sequence[NewTopic]", seconds: float) -> None:
    """Back when they can be used: brokers learn of a new topic a moment after the cluster answered that it is there.

    What is there already is left as it is. Raises the library's error for the first that could not be made.
    """
    from confluent_kafka import KafkaException

    left, until = {each.topic: each for each in topics}, time.monotonic() + seconds
    while left:
        asked = client.create_topics(list(left.values()))
        refused = {name: error for name, answer in asked.items() if (error := _refusal(answer, 2 * seconds))}
        for error in refused.values():
            if _FENCED not in error.str() or time.monotonic() > until:
                raise KafkaException(error)
        left = {name: left[name] for name in refused}
        time.sleep(_LOOK_AGAIN_SECONDS if left else 0)
    until = time.monotonic() + seconds
    for topic in topics:
        name = topic.topic
        while client.list_topics(topic=name, timeout=seconds).topics[name].error and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_SECONDS)


def _refusal(answer: "Future[None]", seconds: float) -> "KafkaError | None":
    """Why a topic is not there; none where it was before."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        answer.result(seconds)
    except KafkaException as error:
        refused: KafkaError = error.args[0]
        return None if refused.code() == KafkaError.TOPIC_ALREADY_EXISTS else refused
    return None


class Hearing:
    """A client's `error_cb`: keeps why it cannot connect, where a question that was not answered only timed out.

    The client calls it while it is polled.
    """

    def __init__(self) -> None:
        self._telling: KafkaError | None = None

    def __call__(self, error: "KafkaError") -> None:
        if codes.kafka(error.name()).family is Misconfigured:
            self._telling = error

    def translate(self, error: "KafkaException", client: "AdminClient") -> FerrymanError:
        """What was heard says more than the error itself; it is heard once."""
        client.poll(0)
        telling, self._telling = self._telling, None
        return translate(telling or error)


def translate(error: "KafkaException | KafkaError") -> FerrymanError:
    """The library's error as one of ours, decided by its code."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    name = inner.name() if hasattr(inner, "name") else "UNKNOWN"
    words = inner.str() if hasattr(inner, "str") else str(inner)
    return codes.kafka(name).error(f"Kafka: {redact(words)} ({name})")
