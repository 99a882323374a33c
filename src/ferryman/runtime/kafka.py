"""Kafka clients: one place builds their configuration and translates their errors."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from ferryman.runtime import codes
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.redaction import redact
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import Consumer, KafkaError, KafkaException, Message
    from confluent_kafka.admin import AdminClient, NewTopic

log = logging.getLogger(__name__)

T = TypeVar("T")

NO_TOPIC = "__ferryman"
"""A topic to ask for when any answer will do: metadata of all topics may be large."""

_LOOK_AGAIN_SECONDS = 0.02
_MOST_NAME_BYTES = 100
# Called like this, the library's result is checked each time. The interpreter skips the check once a direct call has
# become frequent: an error would then surface later, in unrelated code, and the headers would hold a null pointer.
_HEADERS = methodcaller("headers")
_FENCED = "currently fenced"
"""The word for a broker that missed heartbeats: nothing is placed on it until it is back."""


def client_config(kafka: Kafka, process: str, **ours: Any) -> dict[str, Any]:
    """Return a client's configuration: the user's properties, then those that the caller insists on."""
    if not kafka.bootstrap_servers:
        raise Misconfigured(
            "no Kafka cluster is named", setting="kafka.bootstrap_servers", remedy="set it to host:port"
        )
    base: Mapping[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "client.id": f"ferryman-{process}",
        "log_level": 1,  # failures come as errors; librdkafka would log them again with each attempt
        "logger": log,
    }
    return {**base, **kafka.properties, **ours}


def admin(kafka: Kafka, process: str, **ours: Any) -> "AdminClient":
    from confluent_kafka.admin import AdminClient

    with translated():
        return AdminClient(client_config(kafka, process, **{"allow.auto.create.topics": False, **ours}))


def headers_of(message: "Message") -> list[tuple[str, bytes | None]]:
    """Return a record's headers. Raise `ValueError` if a name is not UTF-8 text: to Kafka, names are bytes.

    Do not ask such a message again: the library's next answer holds a null pointer.
    """
    try:
        given: Any = _HEADERS(message)
    except (SystemError, UnicodeDecodeError) as error:
        name = getattr(error.__cause__ or error, "object", b"")
        raise ValueError(f"the name of one of its headers is not UTF-8 text: {name[:_MOST_NAME_BYTES]!r}") from error
    return given or []


def is_built_in(client: "AdminClient", seconds: float) -> bool:
    """Return True if the cluster is librdkafka's built-in broker.

    It has no controller: it makes a topic when a client that allows that asks for it, with four partitions, and has no
    settings. An administrative question to the controller would only time out.
    """
    return is_built_in_id(str(client.list_topics(NO_TOPIC, timeout=seconds).cluster_id))


def is_built_in_id(cluster: str) -> bool:
    """Return True if a cluster with this id is librdkafka's built-in broker: it has another id after each start."""
    return cluster.startswith("mockCluster")


def create_topics(client: "AdminClient", topics: "Sequence[NewTopic]", seconds: float) -> None:
    """Create topics, and return when they can be used: brokers learn of a new topic a moment after the cluster did.

    A topic that exists is left as it is. Raises the library's error for the first that could not be created.
    """
    from confluent_kafka import KafkaException

    if topics and is_built_in(client, seconds):
        _create_by_asking(client, [each.topic for each in topics], seconds)
        return
    left, until = {each.topic: each for each in topics}, time.monotonic() + seconds
    while left:
        asked = client.create_topics(list(left.values()), request_timeout=seconds)
        refused = {name: error for name, answer in asked.items() if (error := _refusal(answer, seconds))}
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


def _create_by_asking(client: "AdminClient", names: Sequence[str], seconds: float) -> None:
    """Ask for each topic with a client that may create it by that."""
    from confluent_kafka.admin import AdminClient

    brokers = client.list_topics(NO_TOPIC, timeout=seconds).brokers.values()
    servers = ",".join(f"{each.host}:{each.port}" for each in brokers)
    creator = AdminClient({"bootstrap.servers": servers, "allow.auto.create.topics": True, "log_level": 0})
    for name in names:
        creator.list_topics(name, timeout=seconds)


def _refusal(answer: "Future[None]", seconds: float) -> "KafkaError | None":
    """Return why a topic does not exist, or None if it does."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        answered(answer, seconds)
    except KafkaException as error:
        refused: KafkaError = error.args[0]
        return None if refused.code() == KafkaError.TOPIC_ALREADY_EXISTS else refused
    return None


def answered(answer: "Future[T]", seconds: float) -> T:
    """Return the answer to an administrative request that was given this long; raise the library's error only."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        return answer.result(2 * seconds)
    except TimeoutError as error:  # the library's own limit comes sooner, unless its thread hangs
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error  # noqa: SLF001 (the library's name)


def group_client(kafka: Kafka, process: str, group: str) -> "Consumer":
    """Return a client that asks for a group's offsets: it names the group, and does not join it.

    An admin client may end the process when it asks a broker that is not the group's coordinator.
    """
    from confluent_kafka import Consumer

    return Consumer(client_config(kafka, process, **{"group.id": group, "enable.auto.commit": False}))


def committed(client: "Consumer", places: Iterable[tuple[str, int]], seconds: float) -> dict[tuple[str, int], int]:
    """Return the offset that the client's group has committed of each partition, negative if there is none."""
    from confluent_kafka import KafkaException, TopicPartition

    found = client.committed([TopicPartition(*place) for place in places], seconds)
    if failed := [each.error for each in found if each.error]:
        raise KafkaException(failed[0])
    return {(each.topic, each.partition): each.offset for each in found}


def topic_settings(
    client: "AdminClient", names: Sequence[str], seconds: float
) -> "tuple[dict[str, dict[str, str]], dict[str, KafkaException]]":
    """Return the settings of these topics, and an error for each topic whose settings the cluster does not show.

    librdkafka's built-in broker shows none.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    told: dict[str, dict[str, str]] = {}
    refused: dict[str, KafkaException] = {}
    if not names or is_built_in(client, seconds):
        return told, refused
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    for resource, answer in client.describe_configs(resources, request_timeout=seconds).items():
        try:
            entries = answered(answer, seconds).values()
            told[str(resource.name)] = {each.name: each.value for each in entries if each.value is not None}
        except KafkaException as error:
            refused[str(resource.name)] = error
    return told, refused


class Hearing:
    """A client's `error_cb` that keeps the reason of a failed connection: requests themselves only time out.

    The client calls it while it is polled.
    """

    def __init__(self) -> None:
        self._heard: KafkaError | None = None

    def __call__(self, error: "KafkaError") -> None:
        if codes.kafka(error.name()).family is Misconfigured:
            self._heard = error

    def translate(self, error: "KafkaException", client: "AdminClient") -> FerrymanError:
        """Return the reason that was heard, which says more than the error, and forget it; else the error."""
        client.poll(0)
        heard, self._heard = self._heard, None
        return translate(heard or error)


@contextmanager
def translated() -> Iterator[None]:
    """Raise the library's errors as ours."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise translate(error) from error


def translate(error: "KafkaException | KafkaError") -> FerrymanError:
    """Return one of our errors for the library's, decided by its code."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    name = inner.name() if hasattr(inner, "name") else "UNKNOWN"
    words = inner.str() if hasattr(inner, "str") else str(inner)
    return codes.kafka(name).error(f"Kafka: {redact(words)} ({name})")
