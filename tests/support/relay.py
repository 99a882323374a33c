"""A lane worker over a publisher that only remembers: for what happens in the database."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from ferryman.relay.cluster import Cluster
from ferryman.relay.kafka import Cut, Publisher
from ferryman.relay.lanes import LaneWorker, Tenure
from ferryman.relay.model import Entry, place_of
from ferryman.relay.store.lanes import Connection
from ferryman.relay.topics import Topic, Topics

Publish = Callable[[Sequence[Entry]], None]
Failing = Callable[[Entry], tuple[str, str] | None]


class Memory:
    """In place of a producer: everything is acknowledged at once, but for what `failing` names an error of.

    As the real one: what stands behind an error is not delivered.
    """

    def __init__(self, publish: Publish, failing: Failing = lambda _entry: None) -> None:
        self._publish = publish
        self._failing = failing
        self._cut: Cut | None = None
        self.rebuilds = 0
        self.bytes_sent = 0

    @property
    def cut_short(self) -> bool:
        return self._cut is not None

    def size(self, entry: Entry) -> int:
        return len(entry[5] or b"")

    def limit_batches(self, limit: int) -> None:
        """Batches of one are never too large."""

    def produce(self, entries: Iterable[Entry], until: float, replay: int | None = None) -> None:
        for entry in entries:
            if self._cut is not None:
                self._cut.add(place_of(entry), "_PURGE_QUEUE", "behind an error")
            elif error := self._failing(entry):
                self._cut = Cut(why=error[1])
                self._cut.add(place_of(entry), *error)
            else:
                self._publish([entry])

    def flush(self, until: float) -> Cut | None:
        cut, self._cut = self._cut, None
        return cut

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """There is nothing to end."""


class AnyTopic:
    """In place of what the cluster knows of its topics: all are there."""

    def get(self, name: str) -> Topic:
        return Topic(name)

    def forget(self, name: str) -> None:
        """Nothing is remembered."""

    def answers(self, _seconds: float) -> str | None:
        return None


def some_cluster() -> Cluster:
    return Cluster(cast(Topics, AnyTopic()))


def lane_worker(
    connection: Connection,
    publish: Publish,
    tenure: Tenure | None = None,
    *,
    failing: Failing = lambda _entry: None,
    cluster: Cluster | None = None,
    **more: Any,
) -> LaneWorker:
    publisher = cast(Publisher, Memory(publish, failing))
    return LaneWorker(connection, publisher, cluster or some_cluster(), tenure, **more)
