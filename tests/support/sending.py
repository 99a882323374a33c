"""Channels in memory that answer as a test says, and the collection of what ended."""

import asyncio
import threading
import time
from collections.abc import Hashable, Iterable
from typing import Any

from ferryman.channels.outcome import Delivered, Outcome
from ferryman.channels.sending import Finished, Item, Sending


class Gated:
    """A channel whose sends wait until the test opens their gate. An item is its own name."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.most_at_once = 0
        self.closed = False
        self._now = 0
        self._changed = threading.Condition()
        self._gates: dict[Any, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def send(self, item: Any) -> Outcome:
        gate = self._gates.setdefault(item, asyncio.Event())
        with self._changed:
            self.started.append(item)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self._changed.notify_all()
        try:
            await gate.wait()
        finally:
            self._now -= 1
        return Delivered(reference=str(item))

    async def close(self) -> None:
        self.closed = True

    def release(self, items: Iterable[Any]) -> None:
        """Let these items end, also those that have not started."""
        names = list(items)

        def open_gates() -> None:
            for each in names:
                self._gates.setdefault(each, asyncio.Event()).set()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(open_gates)

    def wait_for_starts(self, count: int, seconds: float = 60) -> list[Any]:
        """Wait until so many sends have started, and return them in their order."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.started) >= count, seconds), self.started
            return list(self.started)


def items(names: Iterable[Hashable], destination: str | None = None) -> list[Item]:
    return [Item(each, each, destination) for each in names]


def collect(sending: Sending, count: int, seconds: float = 60) -> dict[Any, Finished]:
    """Return so many ended items by their key, each of which ended once."""
    found: list[Finished] = []
    until = time.monotonic() + seconds
    while len(found) < count and (left := until - time.monotonic()) > 0:
        found += sending.ended(left)
    assert len(found) == len({each.key for each in found}) == count, found
    return {each.key: each for each in found}
