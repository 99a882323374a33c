"""Lookups in threads of our own, as aiohttp asks for them."""

import socket
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from ferryman.channels.lookup import DaemonLookups, Lookup


class DaemonResolver(AbstractResolver):
    """A resolver with a daemon thread for each lookup, up to a limit.

    The connector above it keeps answers for some seconds, and asks only once for a name that many requests want at the
    same time.
    """

    def __init__(self, most_threads: int, lookup: Lookup = socket.getaddrinfo) -> None:
        self._lookups = DaemonLookups(most_threads, lookup)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host. Raise `socket.gaierror` if there are none."""
        return [_result(host, port, info) for info in await self._lookups.find(host, port, family)]

    async def close(self) -> None:
        """Leave the threads that still wait for an answer: they end with the process."""


def _result(host: str, port: int, info: Any) -> ResolveResult:
    family, _, protocol, _, where = info
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=where[0], port=port, family=family, proto=protocol, flags=numeric)
