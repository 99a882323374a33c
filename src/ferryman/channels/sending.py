"""One event loop in one thread that sends many items at once, for a thread that knows nothing of asyncio.

    sending.begin(items)          hands a batch over
    sending.ended(seconds)        returns what ended since, and waits for the first
    sending.recall()              takes back what only waits for a slot

A send that is slow holds its slot and nothing else. Every item that was begun ends exactly once, in `ended` or in
`recall`; in neither if it only waits when `close` comes.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import structlog

from ferryman.channels.model import Channel
from ferryman.channels.outcome import Code, Outcome, Retry, Unknown, storable
from ferryman.runtime.errors import FerrymanError, Unreachable
from ferryman.runtime.logs import frames
from ferryman.runtime.redaction import stored_error
from ferryman.runtime.user_code import line_of, told
from ferryman.runtime.user_functions import WrongAnswer, named

log = structlog.get_logger(__name__)

_GRACE_SECONDS = 5.0
"""The time that the end may take after the last deadline."""


class Item(NamedTuple):
    """Something to send. `destination` counts for the most at once of a destination; None is not counted."""

    key: Hashable
    what: Any
    destination: str | None = None


class Finished(NamedTuple):
    """The end of one send. `seconds` is its own time, without the wait for a slot."""

    key: Hashable
    outcome: Outcome
    seconds: float
    destination: str | None = None


class Sending:
    """A channel, driven from a synchronous thread. All methods are safe to call from any thread.

    At most `slots` items are sent at once, and at most `each` of one destination. If `waiting` is true, as many items
    as there are slots may wait behind them; do without where an item must not be claimed before it can be sent. A send
    without an outcome after `deadline_seconds` is cancelled and Unknown, so this should be longer than the timeouts of
    the channel itself.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        slots: int = 64,
        each: int | None = None,
        deadline_seconds: float = 30.0,
        waiting: bool = True,
        name: str = "channel",
    ) -> None:
        if slots < 1 or (each is not None and each < 1) or deadline_seconds <= 0:
            raise ValueError("slots, each and deadline_seconds must be greater than 0")
        self._channel = channel
        self._name = name
        self._most = slots * 2 if waiting else slots
        self._deadline = deadline_seconds
        self._flights = _Flights(
            channel, self._report, name=name, slots=slots, each=each or slots, deadline_seconds=deadline_seconds
        )
        self._finished: deque[Finished] = deque()
        self._happened = threading.Event()
        self._guard = threading.Lock()
        self._held = 0
        self._busy: Counter[str] = Counter()
        self._opened: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._why_not: str | None = "the channel is not open"
        self._thread = self._new_thread()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the thread and open the channel. Raise what the channel raises; then it may be opened again."""
        if self._opened.done() and not self._thread.is_alive():
            self._opened, self._thread = Future(), self._new_thread()
        if self._thread.ident is None:
            self._thread.start()
        try:
            self._opened.result(self._deadline + _GRACE_SECONDS)
        except TimeoutError as error:
            raise Unreachable(f"the channel {self._name} did not open within {self._deadline:g} s") from error

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._main, name=f"sending-{self._name}", daemon=True)

    def why_not(self) -> str | None:
        """Return why nothing can be sent, or None."""
        return self._why_not

    def room(self) -> int:
        """Return how many items may be begun now."""
        with self._guard:
            return max(0, self._most - self._held)

    def busy(self) -> dict[str, int]:
        """Return how many items each destination has here: in flight, waiting, or not yet collected by `ended`."""
        with self._guard:
            return dict(self._busy)

    def begin(self, items: Sequence[Item]) -> None:
        """Hand items over. They start at once where a slot is free."""
        if not items:
            return
        if self._why_not is not None:
            raise FerrymanError(f"nothing can be sent: {self._why_not}")
        with self._guard:
            self._held += len(items)
            self._busy.update(item.destination for item in items if item.destination is not None)
        self._call(self._flights.accept, list(items))

    def ended(self, seconds: float) -> list[Finished]:
        """Return the items that ended, each once; wait so long for the first. Return at once if nothing is held."""
        until = time.monotonic() + seconds
        while True:
            self._happened.clear()
            if found := self._collected():
                return found
            left = until - time.monotonic()
            if left <= 0 or not self._held or not self._thread.is_alive() or not self._happened.wait(left):
                return self._collected()

    def recall(self) -> list[Item]:
        """Take back the items that only wait for a slot, in the order in which they were begun."""
        answer: Future[list[Item]] = Future()

        def take_back() -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(self._flights.recall())

        try:
            self._call(take_back)
            items = answer.result(self._deadline)
        except (RuntimeError, TimeoutError):  # the thread has ended, or a channel blocks it
            answer.cancel()
            return []
        self._let_go(items)
        return items

    def close(self) -> None:
        """Let the sends in flight run to their deadline, then close the channel. What waits is not sent."""
        self._why_not = "the channel is closed"
        with suppress(RuntimeError):
            self._call(self._begin_to_stop)
        if self._thread.is_alive():
            self._thread.join(self._deadline + _GRACE_SECONDS)
        if self._thread.is_alive():
            log.error("a channel does not end", channel=self._name)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        if self._loop is None:
            raise RuntimeError("the channel is not open")
        self._loop.call_soon_threadsafe(function, *arguments)

    def _collected(self) -> list[Finished]:
        """Return what has ended, and free its room."""
        found: list[Finished] = []
        with suppress(IndexError):
            while True:
                found.append(self._finished.popleft())
        self._let_go(found)
        return found

    def _let_go(self, items: Sequence[Item | Finished]) -> None:
        with self._guard:
            self._held -= len(items)
            for item in items:
                if item.destination is not None:
                    self._busy[item.destination] -= 1
                    if not self._busy[item.destination]:
                        del self._busy[item.destination]

    # In the thread of the loop.

    def _report(self, finished: Finished) -> None:
        self._finished.append(finished)
        if not self._happened.is_set():
            self._happened.set()

    def _main(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            log.error("a channel ended", channel=self._name, error=type(error).__name__, where=frames(error))  # noqa: TRY400
        finally:
            self._why_not = self._why_not or "the thread of the channel has ended: the log has the reason"
            self._happened.set()

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._call_if_any("open")
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._why_not = None
        self._opened.set_result(None)
        await self._stop.wait()
        await self._flights.last()
        await self._call_if_any("close")

    async def _call_if_any(self, method: str) -> None:
        """Open or close the channel, if it needs that."""
        if (found := getattr(self._channel, method, None)) is not None:
            await found()

    def _begin_to_stop(self) -> None:
        self._flights.recall()
        if self._stop is not None:
            self._stop.set()


@dataclass(slots=True)
class _Flight:
    """One send: when it began, and when its time is over."""

    item: Item
    began: float
    until: float


class _Flights:
    """The sends of one loop. Nothing here is called from another thread."""

    def __init__(
        self,
        channel: Channel,
        report: Callable[[Finished], None],
        *,
        name: str,
        slots: int,
        each: int,
        deadline_seconds: float,
    ) -> None:
        self._channel = channel
        self._name = name
        self._free = slots
        self._each = each
        self._deadline = deadline_seconds
        self._report = report
        self._waiting: deque[Item] = deque()
        self._behind: dict[str, deque[Item]] = {}
        """Items whose destination has all the slots that it may have."""
        self._sent_now: Counter[str] = Counter()
        self._flights: dict[asyncio.Task[Outcome], _Flight] = {}
        """In the order of their deadlines, since all have the same time."""
        self._overdue: dict[asyncio.Task[Outcome], _Flight] = {}
        """Cancelled and reported; each holds its slot until it really ends."""
        self._timer: asyncio.TimerHandle | None = None
        self._none_left = asyncio.Event()

    def accept(self, items: Sequence[Item]) -> None:
        self._waiting.extend(items)
        self._start_waiting()

    def recall(self) -> list[Item]:
        """Return what has not started, and forget it. Items behind their own destination came first."""
        items = [item for behind in self._behind.values() for item in behind] + list(self._waiting)
        self._behind.clear()
        self._waiting.clear()
        return items

    async def last(self) -> None:
        """Wait until every send has ended or has passed its deadline."""
        if self._flights:
            self._none_left.clear()
            await self._none_left.wait()

    def _start_waiting(self) -> None:
        while self._free and self._waiting:
            item = self._waiting.popleft()
            if item.destination is not None and self._sent_now[item.destination] >= self._each:
                self._behind.setdefault(item.destination, deque()).append(item)
            else:
                self._start(item)

    def _start(self, item: Item) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = loop.create_task(self._send(item))
        flight = self._flights[task] = _Flight(item, began, began + self._deadline)
        self._free -= 1
        if item.destination is not None:
            self._sent_now[item.destination] += 1
        task.add_done_callback(self._landed)
        if self._timer is None:
            self._timer = loop.call_at(flight.until, self._expire)

    async def _send(self, item: Item) -> Outcome:
        """Return the channel's outcome. A bug of the channel is the item's failure, and never ends the loop."""
        try:
            outcome = await self._channel.send(item.what)
            if isinstance(outcome, Outcome):
                return storable(outcome)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # SystemExit as well: it would end the loop of all other sends
            return self._bug(item, error)
        return self._bug(
            item, WrongAnswer(f"send returned {named(outcome)}, which is not an outcome: Delivered(), ...")
        )

    def _bug(self, item: Item, error: BaseException) -> Retry:
        """Log a bug of the channel. Our own channels may quote URLs: their words are not shown."""
        users = isinstance(error, WrongAnswer) or line_of(error, called_by_us=False)
        words = told(error) if users else type(error).__name__
        log.error("a channel raised an error", channel=self._name, row=item.key, error=words, where=frames(error))
        return Retry(stored_error(f"the channel raised {words}"), Code.CHANNEL_BUG)

    def _landed(self, task: asyncio.Task[Outcome]) -> None:
        """Free the slot of a send, and start what waits for it."""
        flight = self._flights.pop(task, None)
        item = flight.item if flight is not None else self._overdue.pop(task).item
        if flight is not None:
            outcome = self._bug(item, asyncio.CancelledError()) if task.cancelled() else task.result()
            seconds = asyncio.get_running_loop().time() - flight.began
            self._report(Finished(item.key, outcome, seconds, item.destination))
        self._free += 1
        if item.destination is not None:
            self._leave(item.destination)
        self._start_waiting()
        self._notice_the_last()

    def _leave(self, destination: str) -> None:
        """Count one send less of a destination, and let the next one of it go first."""
        self._sent_now[destination] -= 1
        if not self._sent_now[destination]:
            del self._sent_now[destination]
        if behind := self._behind.get(destination):
            self._waiting.appendleft(behind.popleft())
            if not behind:
                del self._behind[destination]

    def _expire(self) -> None:
        """Cancel the sends whose time is over, and come back when the next one's is."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._flights:
            task, flight = next(iter(self._flights.items()))
            if flight.until > loop.time():
                self._timer = loop.call_at(flight.until, self._expire)
                return
            self._overdue[task] = self._flights.pop(task)
            words = f"the channel gave no outcome within {self._deadline:g} s"
            outcome = Unknown(words, Code.DEADLINE_PASSED)
            self._report(Finished(flight.item.key, outcome, loop.time() - flight.began, flight.item.destination))
            task.cancel()
        self._notice_the_last()

    def _notice_the_last(self) -> None:
        if not self._flights:
            self._none_left.set()
