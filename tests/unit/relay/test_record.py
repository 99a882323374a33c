"""Entries as Kafka records: CloudEvents 1.0 in binary mode, and the bytes they take."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.relay.kafka import MOST_OVERHEAD_BYTES, Headers, record_headers, record_size
from ferryman.relay.model import Entry

ID = "12345678-1234-5678-1234-567812345678"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def entry(payload: bytes = b"{}", headers: str | None = None, content_type: str | None = None, at_us: int = 0) -> Entry:
    return Entry(7, ID, "orders", "k", "order.placed", payload, headers, content_type, at_us, 3)


def test_cloudevents_attributes_are_headers() -> None:
    at = datetime(2026, 2, 28, 23, 59, 59, 5, tzinfo=UTC)
    found = record_headers(entry(content_type="application/json", at_us=round(at.timestamp() * 1e6)), "/shop")
    assert found == [
        ("ce_specversion", "1.0"),
        ("ce_id", ID),
        ("ce_source", "/shop"),
        ("ce_type", "order.placed"),
        ("ce_time", "2026-02-28T23:59:59.000005Z"),
        ("content-type", "application/json"),
    ]


def test_payload_without_a_content_type_is_octets() -> None:
    assert ("content-type", "application/octet-stream") in record_headers(entry(), "/shop")


def test_writers_own_headers_are_published() -> None:
    own = {"traceparent": TRACE, "naïve": "grüß", "empty": ""}
    assert record_headers(entry(headers=json.dumps(own)), "/shop")[6:] == list(own.items())


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2200, 1, 1)))  # noqa: DTZ001 - UTC is put on below
def test_time_is_rfc3339_in_utc_to_the_microsecond(naive: datetime) -> None:
    at = naive.replace(tzinfo=UTC)
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    us = (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
    written = dict(record_headers(entry(at_us=us), "/shop"))["ce_time"]
    assert isinstance(written, str)
    assert written.endswith("Z")
    assert datetime.fromisoformat(written) == at


def varint(number: int) -> int:
    """Return the length of Kafka's zigzag varint for a number that is not negative."""
    return max(1, -(-(number << 1).bit_length() // 7))


def in_a_batch_alone(key: bytes, payload: bytes, headers: Headers) -> int:
    """Return the bytes by the protocol: a batch's 61, then the record's length, attributes, times and parts."""
    body = 1 + varint(0) + varint(0) + varint(len(key)) + len(key) + varint(len(payload)) + len(payload)
    body += varint(len(headers))
    for name, value in headers:
        raw = value.encode() if isinstance(value, str) else value or b""
        body += varint(len(name.encode())) + len(name.encode()) + varint(len(raw)) + len(raw)
    return 61 + varint(body) + body


@given(
    st.text(max_size=40),
    st.sampled_from([0, 1, 63, 64, 8191, 8192, 1_000_000]),
    st.dictionaries(st.text(max_size=200), st.text(max_size=300), max_size=30),
)
def test_record_size_is_at_least_what_the_broker_measures_and_little_more(
    key: str, length: int, own: dict[str, str]
) -> None:
    payload = b"x" * length
    headers = record_headers(entry(payload, json.dumps(own)), "/shop")
    real = in_a_batch_alone(key.encode(), payload, headers)
    assert real <= record_size(key, payload, headers) <= real + 40 + 6 * len(headers)


@pytest.mark.parametrize("own", [{f"h{n}": "" for n in range(1500)}, {"h": "ü" * 14_000}])
def test_key_and_headers_stay_within_the_assumed_overhead(own: dict[str, str]) -> None:
    """Entries at the outbox's own limits need not be measured one by one."""
    one = Entry(7, ID, "o" * 249, "k" * 2000, "t" * 255, b"", json.dumps(own), "application/json", 0, 3)
    assert record_size(one.key, b"", record_headers(one, "/" + "s" * 63)) <= MOST_OVERHEAD_BYTES
