"""The sources of a saga's results: each type is believed from one topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from ferryman.consumer.kafka.consumer_topics import retry_topic
from ferryman.consumer.model import Received


class ResultSource(NamedTuple):
    """A topic that results come from, and the consumer that reads it."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class ResultSources:
    """The source from which each type of result is believed, by the type or by a pattern of types.

    A writer of one topic must not decide about the results of another; requeued results come by the consumer's retry
    topic. Topics with different writers need different consumers: a consumer knows a message by its id alone, so one
    writer could use up the ids of another.
    """

    by_type: Mapping[str, ResultSource]
    _known: dict[str, ResultSource | None] = field(default_factory=dict)

    @classmethod
    def named(cls, saga: str, results: Mapping[str, str | ResultSource]) -> "ResultSources":
        """Name the consumer of each topic after the saga, if no other is given."""
        topics = {each for each in results.values() if isinstance(each, str)}
        names = {topic: saga if len(topics) == 1 else f"{saga}-{topic}" for topic in topics}
        return cls({
            kind: ResultSource(names[each], each) if isinstance(each, str) else each for kind, each in results.items()
        })  # fmt: skip

    @property
    def distinct(self) -> list[ResultSource]:
        return [*dict.fromkeys(self.by_type.values())]

    @property
    def types(self) -> list[str]:
        return [*self.by_type]

    def source(self, kind: str) -> ResultSource | None:
        """Return the source of this type of result."""
        if kind not in self._known:
            matching = (each for pattern, each in self.by_type.items() if fnmatchcase(kind, pattern))
            self._known[kind] = self.by_type.get(kind) or next(matching, None)
        return self._known[kind]

    def believes(self, result: Received) -> bool:
        """Return True if the result came from the source of its type."""
        source, topic = self._known.get(result.type) or self.source(result.type), result.record.topic
        return source is not None and (topic == source.topic or topic == retry_topic(source.topic, source.consumer))
