"""The catalogue's topics on a cluster: which are missing, what differs, and what may be done about it.

Nothing is deleted and nothing shrinks. Partitions are not added either: the keys would move, and their order with them.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka
from ferryman.schemas.catalogue import Catalogue, Topic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Action = Literal["create", "raise", "leave"]

_RETENTION, _LARGEST, _POLICY = "retention.ms", "max.message.bytes", "cleanup.policy"
_FOR_EVER = -1


@dataclass(frozen=True, slots=True)
class Difference:
    """Between the catalogue and the cluster, and what `apply` does about it."""

    topic: str
    what: str
    here: str | None
    wanted: str
    action: Action
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Topics:
    """Of one cluster."""

    def __init__(self, settings: Kafka) -> None:
        self._seconds = settings.timeout_seconds
        self._admin: AdminClient = kafka.admin(settings, "topics", **{"allow.auto.create.topics": False})

    def differences(self, catalogue: Catalogue) -> list[Difference]:
        """In the order of the catalogue. A deprecated topic need not be there."""
        partitions = self._partitions()
        there = [name for name in catalogue.topics if name in partitions]
        configurations = self._configurations(there)
        found: list[Difference] = []
        for topic in catalogue.topics.values():
            if topic.name in partitions:
                found += _compared(topic, partitions[topic.name], configurations[topic.name])
            elif topic.deprecated is None:
                found.append(Difference(topic.name, "topic", None, _words(topic), "create"))
        return found

    def apply(self, catalogue: Catalogue, differences: Sequence[Difference], *, replication: int | None = None) -> None:
        """Creates what is missing and raises what is lower; what is to be left is left."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

        missing = [catalogue.topics[each.topic] for each in differences if each.action == "create"]
        lower: dict[str, list[ConfigEntry]] = {}
        for each in differences:
            if each.action == "raise":
                entry = ConfigEntry(each.what, each.wanted, incremental_operation=AlterConfigOpType.SET)
                lower.setdefault(each.topic, []).append(entry)
        made = [
            NewTopic(topic.name, topic.partitions, replication or -1, config=_configuration(topic)) for topic in missing
        ]
        try:
            kafka.create_topics(self._admin, made, self._seconds)
        except KafkaException as error:
            raise kafka.translate(error) from error
        resources = [
            ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries) for name, entries in lower.items()
        ]
        self._await(self._admin.incremental_alter_configs(resources) if resources else {})

    def _partitions(self) -> dict[str, int]:
        from confluent_kafka import KafkaException

        try:
            topics = self._admin.list_topics(timeout=self._seconds).topics
        except KafkaException as error:
            raise kafka.translate(error) from error
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def _configurations(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        asked = (
            self._admin.describe_configs(
                [ConfigResource(ResourceType.TOPIC, name) for name in names], request_timeout=self._seconds
            )
            if names
            else {}
        )
        answers = self._await({resource.name: answer for resource, answer in asked.items()})
        return {
            name: {entry.name: entry.value for entry in entries.values() if entry.value is not None}
            for name, entries in answers.items()
        }

    def _await(self, asked: dict[Any, "Future[Any]"]) -> dict[Any, Any]:
        """Every answer, or the first error."""
        from confluent_kafka import KafkaException

        answers = {}
        for name, answer in asked.items():
            try:
                answers[name] = answer.result(2 * self._seconds)
            except KafkaException as error:
                raise kafka.translate(error) from error
        return answers


def _compared(topic: Topic, partitions: int, configuration: dict[str, str]) -> list[Difference]:
    found = []
    if partitions != topic.partitions:
        why = "more partitions would move keys and break their order; fewer cannot be had"
        found.append(Difference(topic.name, "partitions", str(partitions), str(topic.partitions), "leave", why))
    policy = configuration.get(_POLICY, "delete")
    if "compact" in policy:
        why = "a late duplicate would overwrite a newer value: set it to delete, by hand and with its readers"
        found.append(Difference(topic.name, _POLICY, policy, "delete", "leave", why))
    for name, wanted in _configuration(topic).items():
        here = configuration.get(name)
        if name != _POLICY and here is not None and here != wanted:
            found.append(_raised(topic, name, int(here), int(wanted)))
    return found


def _raised(topic: Topic, name: str, here: int, wanted: int) -> Difference:
    higher = (here == _FOR_EVER and name == _RETENTION) or here > wanted
    why = "it is more than is promised: nothing is shrunk" if higher else ""
    return Difference(topic.name, name, str(here), str(wanted), "leave" if higher else "raise", why)


def _configuration(topic: Topic) -> dict[str, str]:
    return {_POLICY: "delete", _RETENTION: str(topic.retention_ms), _LARGEST: str(topic.max_message_bytes)}


def _words(topic: Topic) -> str:
    return f"{topic.partitions} partitions, {_RETENTION}={topic.retention_ms}, {_LARGEST}={topic.max_message_bytes}"
