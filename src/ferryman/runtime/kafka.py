"""Clients of Kafka: one place builds their configuration and translates their errors."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ferryman.runtime import codes
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.redaction import redact
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)


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
