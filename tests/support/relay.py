"""A lane worker with a publisher in memory, to test what happens in the database."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast

from ferryman.relay.cluster import Cluster
from ferryman.relay.kafka import Cut, Publisher
from ferryman.relay.lanes import LaneWorker
from ferryman.relay.model import Entry, payload_of, place_of
from ferryman.relay.policy import Retries
from ferryman.relay.topics import BROKERS_OWN_LIMIT, Refusal, TopicDirectory, TopicState
from ferryman.runtime.life import Before, no_hook
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_relay import Relay, RelayRetry

Publish = Callable[[Sequence[Entry]], None]
Failing = Callable[[Entry], tuple[str, str] | None]


class Memory:
    """A producer in memory: it acknowledges everything at once, except entries that `failing` gives an error for.

    Like the real one, it does not deliver what comes after an error.
    """

    def __init__(self, publish: Publish, failing: Failing = lambda _entry: None) -> None:
        self._publish = publish
        self._failing = failing
        self._cut: Cut | None = None
        self.bytes_sent = 0

    @property
    def cut_short(self) -> bool:
        return self._cut is not None

    def take_rebuilds(self) -> int:
        return 0

    def size(self, entry: Entry) -> int:
        return len(payload_of(entry) or b"")

    def limit_batches(self, limit: int) -> None:
        """Do nothing: batches of one are never too large."""

    def produce(self, entries: Iterable[Entry], until: float, replay: int | None = None) -> dict[int, str]:
        for entry in entries:
            if self._cut is not None:
                self._cut.add(place_of(entry), "_PURGE_QUEUE", "behind an error")
            elif error := self._failing(entry):
                self._cut = Cut(why=error[1])
                self._cut.add(place_of(entry), *error)
            else:
                self._publish([entry])
        return {}

    def open(self) -> None:
        """Do nothing: memory is always open."""

    def is_silent(self, _seconds: float) -> bool:
        return False

    def flush(self, until: float) -> Cut | None:
        cut, self._cut = self._cut, None
        return cut

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


class AnyTopic:
    """A topic directory in which every topic exists."""

    def meet(self, names: Collection[str]) -> dict[str, TopicState]:
        return {name: TopicState(BROKERS_OWN_LIMIT) for name in names}

    def unmet(self, _names: Collection[str]) -> set[str]:
        return set()

    def refusals(self, _names: Collection[str], _seconds: float) -> dict[str, Refusal]:
        return {}

    def forget(self, name: str) -> None:
        """Do nothing: nothing is remembered."""

    def answers(self, _seconds: float) -> str | None:
        return None


def some_cluster(clock: Callable[[], float] = time.monotonic) -> Cluster:
    """Return a cluster that examines its topics at once, and finds them well."""
    return Cluster(cast(TopicDirectory, AnyTopic()), clock, beside=lambda work: work())


def lane_worker(
    connection: Connection,
    publish: Publish,
    settings: Relay | None = None,
    *,
    failing: Failing = lambda _entry: None,
    cluster: Cluster | None = None,
    before: Before = no_hook,
) -> LaneWorker:
    publisher, stopping = cast(Publisher, Memory(publish, failing)), threading.Event()
    return LaneWorker(connection, publisher, cluster or some_cluster(), settings or Relay(), stopping, "", before)


def unlimited(retries: Retries | None = None, **settings: Any) -> Relay:
    """Return settings of the relay that may be beyond the limits of the settings file: a tenure of no time at all."""
    wanted = retries or Retries()
    retry = RelayRetry.model_construct(limit=wanted.limit, **asdict(wanted.backoff))
    return Relay.model_construct(retry=retry, **settings)
