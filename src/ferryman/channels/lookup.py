"""Names are resolved in threads of our own, so that one that hangs delays no other and no end of the process.

asyncio would use its default executor: on a machine with two processors that has six threads, which six names that hang
take for half a minute; and a process waits for an executor's threads before it ends.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

Lookup: TypeAlias = Callable[..., list[Any]]
"""A function with the signature of `socket.getaddrinfo`."""


class DaemonLookups:
    """A daemon thread for each lookup, up to a limit; further lookups wait.

    A lookup cannot be cancelled, so its thread counts until the lookup returns.
    """

    def __init__(self, most_threads: int, lookup: Lookup = socket.getaddrinfo) -> None:
        self._lookup = lookup
        self._free = asyncio.Semaphore(most_threads)

    async def find(self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[Any]:
        """Return the addresses of a host, as `getaddrinfo` does. Raise an `OSError` if there are none."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()

        def finish(found: list[Any], error: BaseException | None) -> None:
            self._free.release()
            if answer.cancelled():
                return
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)

        def look_up() -> None:
            found: list[Any] = []
            failed: BaseException | None = None
            try:
                found = self._lookup(host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)
            except BaseException as error:
                failed = error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finish, found, failed)

        try:
            threading.Thread(target=look_up, name=f"resolve-{host[:40]}", daemon=True).start()
        except BaseException:  # no more threads may start: nothing will call `finish`
            self._free.release()
            raise
        if not (found := await answer):
            raise OSError("the name has no address")  # aiohttp takes an empty list for a bug of its own
        return found
