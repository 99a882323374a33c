"""The addresses that requests may not go to, judged when a connection is made: a name may mean another a moment later.

aiohttp calls the guard for every address that it tries, those of names and literal ones. A connection that is kept was
judged when it was made. `is_global` of the standard library is not enough: on Python 3.11 it is true of multicast,
6to4, NAT64 and Azure's metadata server. So the list is here, and of IPv6 only global unicast is allowed at all.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Range: TypeAlias = IPv4Network | IPv6Network

_REASONS = {
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by a carrier's customers",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local; metadata of clouds",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignments; metadata of Oracle's cloud",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "AMT",
    "192.88.99.0/24": "6to4 relays",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "AS112",
    "198.18.0.0/15": "benchmarks of networks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved; broadcast",
    "168.63.129.16/32": "metadata of Azure, at a public address",
    "64:ff9b:1::/48": "NAT64 of a local network",
    "100::/64": "discard",
    "2001::/23": "protocol assignments; Teredo",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "AS112",
    "3fff::/20": "documentation",
    "5f00::/16": "segment routing",
    "fc00::/7": "private; metadata of AWS",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
RANGES: dict[Range, str] = {ip_network(each): reason for each, reason in _REASONS.items()}
"""The ranges that are refused, each with its reason."""

_EMBEDDED = tuple(IPv6Network(each) for each in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
"""IPv6 ranges whose last four bytes are an IPv4 address, which is judged instead."""

_GLOBAL_UNICAST = IPv6Network("2000::/3")


@dataclass(slots=True)
class Connects:
    """The connection of one send, and the addresses that it was about to connect to.

    The guard counts here because the exception does not tell: of several addresses it is that of the last.
    """

    asked: int = 0
    refused: list[str] = field(default_factory=list)
    """The refused addresses, each with the reason. They are for the log only."""
    transport: asyncio.Transport | None = None
    """The connection that the last request got."""

    @property
    def all_refused(self) -> bool:
        """True if an address was tried and none was allowed."""
        return 0 < self.asked == len(self.refused)


CONNECTS: ContextVar[Connects] = ContextVar("connects")
"""The count of the send that runs in this context."""


class AddressRefused(OSError):
    """The refusal of an address. aiohttp tries the next address only after an OSError."""


class AddressGuard:
    """The judge of addresses. `allow` names ranges that are open although they are in the list."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        self._allowed: list[Range] = [ip_network(each) for each in allow]

    def why_refused(self, address: Address) -> str | None:
        """Return why no request may go to an address, or None."""
        inner = embedded(address)
        if any(each in allowed for allowed in self._allowed for each in (address, inner)):
            return None
        reason = next((reason for network, reason in RANGES.items() if inner in network), None)
        if reason is None and inner.version == 6 and inner not in _GLOBAL_UNICAST:
            return "not global unicast"
        return reason

    def make_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Make the socket for an address, as aiohttp's `socket_factory`; or count the address and raise an error."""
        family, kind, protocol, _, where = info
        connects = CONNECTS.get(None) or Connects()
        connects.asked += 1
        try:
            reason = self.why_refused(ip_address(where[0]))
        except ValueError:
            reason = "not an IP address"
        if reason is not None:
            connects.refused.append(f"{where[0]}: {reason}")
            raise AddressRefused(f"the address is refused: {reason}")
        return socket.socket(family, kind, protocol)


def embedded(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 address, or the address itself."""
    if isinstance(address, IPv6Address) and any(address in each for each in _EMBEDDED):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def literal_address(host: str) -> Address | None:
    """Return the address that a host of a URL is, in any form that the system takes; None for other names."""
    host = host.removesuffix(".").lower()
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761
        return IPv4Address("127.0.0.1")
    with suppress(ValueError):
        return ip_address(host)
    with suppress(OSError, UnicodeError):
        return IPv4Address(socket.inet_aton(host))
    return None
