"""Signals that ask a process to end, read by a thread that does nothing else.

Python runs signal handlers in the main thread, when that continues. Linux may deliver a signal to another thread, and
then a main thread that waits for a lock is not woken: the signal is lost (seen after hours of running). Also, a handler
must not touch a lock that its own thread may hold, such as that of an Event. But the interpreter writes the number of
each signal into a pipe, at once and whichever thread received it.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGINT)

_NO_MORE = b"\0"


@contextmanager
def heard(told: Callable[[], None]) -> Iterator[None]:
    """Call `told` for each signal that asks to end, in a thread of its own. Only the main thread may use this."""
    hearing, saying = os.pipe()
    os.set_blocking(saying, False)
    listener = threading.Thread(target=_listen, args=(hearing, told), name="signals", daemon=True)
    before = {number: signal.signal(number, _nothing) for number in ENDING}
    before_us = signal.set_wakeup_fd(saying, warn_on_full_buffer=False)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before_us)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.write(saying, _NO_MORE)
        listener.join()
        os.close(hearing)
        os.close(saying)


def _listen(hearing: int, told: Callable[[], None]) -> None:
    while _NO_MORE not in (said := os.read(hearing, 64)):
        for number in said:
            if number in ENDING:
                told()


def _nothing(_number: int, _frame: object) -> None:
    """Do nothing: only signals that have a handler are written into the pipe."""
