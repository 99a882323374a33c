"""The ids of topics (KIP-516): a topic that was made anew has another. librdkafka's built-in broker tells none."""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicCollection

from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_ASK_AGAIN_SECONDS = 10.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(slots=True)
class TopicIds:
    """Asks one cluster for the ids of topics."""

    settings: Kafka
    known: dict[str, str] = field(default_factory=dict)
    """The last known id of each topic."""
    _changed: dict[str, str] = field(default_factory=dict)
    _client: "AdminClient | None" = None
    """Kept for as long as this process runs: a client must not end while it is asked something."""
    _told: bool = True
    """False if the cluster tells no ids."""
    _asked: Mapping[str, "Future[Any]"] = field(default_factory=dict)
    _ask_at: float = 0.0

    def ask(self, topics: Collection[str]) -> None:
        """Ask for these topics' ids, and wait for the answer. Without one, they are asked for again later."""
        self._ask(topics)
        for answer in self._asked.values():
            with suppress(KafkaException):
                kafka.answered(answer, self.settings.timeout_seconds)
        self._take()

    def refresh(self, topics: Collection[str]) -> None:
        """Ask now and then, without waiting."""
        if self._asked:
            if all(each.done() for each in self._asked.values()):
                self._take()
        elif topics and time.monotonic() >= self._ask_at:
            self._ask(topics)

    def changed(self) -> dict[str, str]:
        """Return the ids that are new since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    def _ask(self, topics: Collection[str]) -> None:
        seconds = self.settings.timeout_seconds
        self._ask_at = time.monotonic() + _ASK_AGAIN_SECONDS
        if self._client is None:
            client = kafka.admin(self.settings, "topic-ids")
            self._told = not kafka.is_built_in(client, seconds)
            self._client = client
        if self._told:
            self._asked = self._client.describe_topics(TopicCollection(list(topics)), request_timeout=seconds)

    def _take(self) -> None:
        """Keep what was answered. A topic that is away, or that this process may not describe, keeps its id."""
        for topic, answer in self._asked.items():
            with suppress(KafkaException):
                if not answer.done() or (topic_id := str(answer.result().topic_id)) == _NO_ID:
                    continue
                if self.known.get(topic) != topic_id:
                    self.known[topic] = self._changed[topic] = topic_id
        self._asked = {}
