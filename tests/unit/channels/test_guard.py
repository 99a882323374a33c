"""No request goes to an address of our own network, however it is written (N15)."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman import InvalidEndpoint, check_endpoint
from ferryman.channels.http.guard import CONNECTS, RANGES, AddressGuard, AddressRefused, Connects, embedded

LISTED = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
    "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7",
    "fe80::/10", "fec0::/10", "ff00::/8", "2620:4f:8000::/48",
]  # fmt: skip
"""Written again here, so that no range disappears from the product unnoticed."""


@pytest.mark.parametrize("text", LISTED)
def test_both_ends_of_every_range_are_refused(text: str) -> None:
    network = ip_network(text)
    guard = AddressGuard()
    assert guard.why_refused(network[0]) is not None
    assert guard.why_refused(network[-1]) is not None


def test_every_range_has_a_reason_and_is_in_this_list() -> None:
    assert {str(network) for network in RANGES} == set(LISTED)
    assert all(RANGES.values())


@pytest.mark.parametrize("text", LISTED)
def test_neighbours_of_every_range_are_judged_on_their_own(text: str) -> None:
    """The address before and the one after a range are refused only if another range, or no unicast, has them."""
    network = ip_network(text)
    for number in (int(network[0]) - 1, int(network[-1]) + 1):
        if 0 < number < 2**network.max_prefixlen:
            address = type(network[0])(number)
            others = any(address in other for other in RANGES if other != network and other.version == network.version)
            unicast = network.version == 4 or address in ip_network("2000::/3")
            assert (AddressGuard().why_refused(address) is None) == (unicast and not others), address


@pytest.mark.parametrize(
    "text",
    [
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::168.63.129.16", "64:ff9b:1::1", "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fd00:ec2::254", "fe80::1%eth0", "ff02::1", "4000::1", "::2:0:0:0:1",
        "192.0.0.192", "100.100.100.200", "255.255.255.255", "168.63.129.16",
    ],
)  # fmt: skip
def test_disguised_and_metadata_addresses_are_refused(text: str) -> None:
    assert AddressGuard().why_refused(ip_address(text)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1.1", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0", "168.63.129.15", "168.63.129.17",
        "2606:4700::1111", "2a00:1450:4001:82b::200e", "::ffff:1.1.1.1", "64:ff9b::101:101",
    ],
)  # fmt: skip
def test_public_addresses_are_allowed(text: str) -> None:
    assert AddressGuard().why_refused(ip_address(text)) is None


@given(st.integers(0, 2**32 - 1), st.sampled_from(["::", "::ffff:0:0", "64:ff9b::", "::ffff:0:0:0"]))
def test_embedded_address_is_judged_as_the_address_itself(number: int, prefix: str) -> None:
    inner = IPv4Address(number)
    outer = IPv6Address(int(IPv6Address(prefix)) + number)
    assert embedded(outer) == inner
    assert AddressGuard().why_refused(outer) == AddressGuard().why_refused(inner)


@given(st.ip_addresses(v=4))
def test_allowed_ipv4_address_is_in_no_range(address: IPv4Address) -> None:
    assert (AddressGuard().why_refused(address) is None) == (not any(address in each for each in RANGES))


def test_allow_opens_a_range_and_nothing_else() -> None:
    guard = AddressGuard(["10.1.0.0/16", "fd00:1::/32"])
    opened = ["10.1.2.3", "::ffff:10.1.2.3", "fd00:1::5"]
    assert [guard.why_refused(ip_address(each)) for each in opened] == [None] * 3
    assert guard.why_refused(ip_address("10.2.0.0")) is not None
    assert guard.why_refused(ip_address("fd00:2::5")) is not None


def info(address: str) -> tuple[object, ...]:
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 80))


def test_factory_makes_a_socket_only_for_an_allowed_address_and_counts() -> None:
    connects = Connects()
    token = CONNECTS.set(connects)
    try:
        guard = AddressGuard()
        for refused in ("127.0.0.1", "not an address"):
            with pytest.raises(AddressRefused):
                guard.make_socket(info(refused))
        assert connects.all_refused
        assert [each.partition(":")[0] for each in connects.refused] == ["127.0.0.1", "not an address"]
        with guard.make_socket(info("1.1.1.1")) as made:
            assert made.family == socket.AF_INET
        assert connects.asked == 3
        assert not connects.all_refused
    finally:
        CONNECTS.reset(token)


def test_refusal_is_an_os_error_or_the_next_address_is_not_tried() -> None:
    assert issubclass(AddressRefused, OSError)


def test_send_that_tried_no_address_was_not_refused() -> None:
    assert not Connects().all_refused


def test_ranges_do_not_open_a_whole_family() -> None:
    assert IPv4Network("0.0.0.0/0") not in RANGES


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/in", "https://8.8.8.8/", "https://[2606:4700::1111]/", "https://localhost.example/",
        "https://10.1.2.3/", "https://[::ffff:10.1.2.3]/",
    ],
)  # fmt: skip
def test_endpoint_at_an_open_address_is_taken(url: str) -> None:
    check_endpoint(url, ["10.1.0.0/16"])


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://127.1/", "loopback"), ("https://0x7f000001/", "loopback"), ("https://2130706433/", "loopback"),
        ("https://LOCALHOST/", "loopback"), ("https://a.localhost./", "loopback"), ("https://10.2.0.1/", "private"),
        ("https://[::1]/", "this host"), ("https://[64:ff9b::a00:1]/", "private"), ("https://[4000::1]/", "unicast"),
        ("http://hooks.example/geheim", "does not begin with https://"), ("https://geheim@hooks.example/", "user"),
    ],
)  # fmt: skip
def test_endpoint_that_no_request_may_go_to_is_refused_and_not_shown(url: str, words: str) -> None:
    with pytest.raises(InvalidEndpoint, match=words) as refused:
        check_endpoint(url, ["10.1.0.0/16"])
    assert "geheim" not in str(refused.value)
    if url.startswith("http:"):
        check_endpoint(url, http=True)
