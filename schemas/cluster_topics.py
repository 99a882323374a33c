"""The catalogue's topics on a cluster: what is missing or different, and what may be done about it.

Nothing is deleted or lowered. Partitions are not added either: keys would move, and lose their order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka
from ferryman.schemas.catalogue import Catalogue, CatalogueTopic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_RETENTION, _LARGEST, _POLICY = "retention.ms", "max.message.bytes", "cleanup.policy"
_FOR_EVER = -1
BUILT_IN = (
    "this is librdkafka's built-in broker: every topic has four partitions and no settings, so only whether a topic "
    "exists is compared"
)


@dataclass(frozen=True, slots=True)
class TopicDifference:
    """A difference between the catalogue and the cluster, and what `apply` does about it."""

    topic: str
    what: str
    here: str | None
    wanted: str
    action: Literal["create", "raise", "leave"]
    why: str = ""


class ClusterTopics:
    """The topics of one cluster."""

    def __init__(self, settings: Kafka) -> None:
        self._seconds = settings.timeout_seconds
        self._admin: AdminClient = kafka.admin(settings, "topics")

    def limits(self) -> str | None:
        """Return what cannot be compared or set on this cluster, or None."""
        with kafka.translated():
            return BUILT_IN if kafka.is_built_in(self._admin, self._seconds) else None

    def differences(self, catalogue: Catalogue) -> list[TopicDifference]:
        """Compare in the order of the catalogue. A deprecated topic need not exist."""
        with kafka.translated():
            topics = self._admin.list_topics(timeout=self._seconds).topics
            partitions = {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}
            there = [name for name in catalogue.topics if name in partitions]
            settings, refused = kafka.topic_settings(self._admin, there, self._seconds)
            for error in refused.values():
                raise error  # without its settings no topic can be compared
        found: list[TopicDifference] = []
        for name, topic in catalogue.topics.items():
            if name in settings:
                found += _compared(topic, partitions[name], settings[name])
            elif topic.deprecated is None and name not in partitions:
                limits = ", ".join(f"{limit}={value}" for limit, value in _limits(topic).items())
                wanted = f"{topic.partitions} partitions, {limits}"
                found.append(TopicDifference(name, "topic", None, wanted, "create"))
        return found

    def apply(
        self, catalogue: Catalogue, differences: Sequence[TopicDifference], *, replication: int | None = None
    ) -> None:
        """Create what is missing and raise what is lower; leave the rest."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

        made: list[NewTopic] = []
        lower: dict[str, list[ConfigEntry]] = {}
        for each in differences:
            if each.action == "create":
                topic = catalogue.topics[each.topic]
                config = {_POLICY: "delete", **{limit: str(value) for limit, value in _limits(topic).items()}}
                made.append(NewTopic(topic.name, topic.partitions, replication or -1, config=config))
            elif each.action == "raise":
                entry = ConfigEntry(each.what, each.wanted, incremental_operation=AlterConfigOpType.SET)
                lower.setdefault(each.topic, []).append(entry)
        resources = [
            ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries) for name, entries in lower.items()
        ]
        with kafka.translated():
            kafka.create_topics(self._admin, made, self._seconds)
            if resources:
                asked = self._admin.incremental_alter_configs(resources, request_timeout=self._seconds)
                for answer in asked.values():
                    kafka.answered(answer, self._seconds)


def _compared(topic: CatalogueTopic, partitions: int, settings: Mapping[str, str]) -> Iterator[TopicDifference]:
    if partitions != topic.partitions:
        why = "more partitions would move keys and break their order; fewer are not possible"
        yield TopicDifference(topic.name, "partitions", str(partitions), str(topic.partitions), "leave", why)
    policy = settings.get(_POLICY, "delete")
    if "compact" in policy:
        why = "a late duplicate would overwrite a newer value: set it to delete yourself, and tell its readers"
        yield TopicDifference(topic.name, _POLICY, policy, "delete", "leave", why)
    for limit, wanted in _limits(topic).items():
        here = int(settings.get(limit, wanted))
        if here > wanted or (here == _FOR_EVER and limit == _RETENTION):
            why = "it is higher than promised, and nothing is lowered"
            yield TopicDifference(topic.name, limit, str(here), str(wanted), "leave", why)
        elif here < wanted:
            yield TopicDifference(topic.name, limit, str(here), str(wanted), "raise")


def _limits(topic: CatalogueTopic) -> dict[str, int]:
    return {_RETENTION: topic.retention_ms, _LARGEST: topic.max_message_bytes}
