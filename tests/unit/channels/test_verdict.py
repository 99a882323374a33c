"""The meaning of each status, and of Retry-After in both of its forms."""

import time
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.channels.http.verdict import retry_after_seconds, verdict
from ferryman.channels.outcome import Code, Delivered, Outcome, Rejected, Retry

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def judged(status: int, retry_after: str | None = None, excerpt: str | None = None) -> Outcome:
    return verdict(status, retry_after=retry_after, now=NOW.timestamp(), cap_seconds=3600, excerpt=excerpt)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_every_2xx_is_delivered(status: int) -> None:
    assert judged(status, excerpt="ok") == Delivered(excerpt="ok", http_status=status)


RETRIED = {
    408: Code.ANSWER_RETRY, 425: Code.ANSWER_RETRY, 429: Code.RATE_LIMITED, 500: Code.SERVER_FAILED,
    502: Code.SERVER_FAILED, 503: Code.SERVER_FAILED, 504: Code.SERVER_FAILED, 599: Code.SERVER_FAILED,
}  # fmt: skip
REJECTED = {
    101: Code.REFUSED, 300: Code.REDIRECTED, 301: Code.REDIRECTED, 302: Code.REDIRECTED, 304: Code.REDIRECTED,
    308: Code.REDIRECTED, 399: Code.REDIRECTED, 400: Code.REFUSED, 401: Code.NOT_AUTHORIZED, 403: Code.NOT_AUTHORIZED,
    404: Code.NOT_FOUND, 405: Code.REFUSED, 407: Code.NOT_AUTHORIZED, 409: Code.REFUSED, 410: Code.GONE,
    413: Code.REFUSED, 422: Code.REFUSED, 499: Code.REFUSED, 600: Code.REFUSED, 999: Code.REFUSED,
}  # fmt: skip


@pytest.mark.parametrize("status", RETRIED)
def test_statuses_that_may_pass_are_retried(status: int) -> None:
    found = judged(status, retry_after="7", excerpt="busy")
    assert isinstance(found, Retry)
    assert (found.code, found.after_seconds, found.excerpt) == (RETRIED[status], 7, "busy")
    assert str(status) in found.error


@pytest.mark.parametrize("status", REJECTED)
def test_every_other_status_is_rejected(status: int) -> None:
    found = judged(status, retry_after="7", excerpt="no")
    assert isinstance(found, Rejected)
    assert (found.code, found.excerpt) == (REJECTED[status], "no")
    assert str(status) in found.error


@given(st.integers(0, 1000))
def test_every_status_has_exactly_one_kind_of_outcome(status: int) -> None:
    expected = Delivered if 200 <= status < 300 else Retry if status in RETRIED or 500 <= status < 600 else Rejected
    assert type(judged(status)) is expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None), ("", None), ("0", 0), ("120", 120), (" 120 ", 120), ("3601", 3600), ("9" * 400, 3600),
        ("9" * 5000, 3600), ("-5", None), ("1.5", None), ("soon", None), ("1e3", None), ("²", None), ("٣", None),
        ("Fri, 20 Nov 2026 12:01:00 GMT", 60), ("Friday, 20-Nov-26 12:01:00 GMT", 60),
        ("Fri Nov 20 12:01:00 2026", 60), ("Fri, 20 Nov 2026 11:59:00 GMT", 0), ("Fri, 20 Nov 2026 12:01:00 -0000", 60),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600), ("Fri, 20 Nov 2026", None), ("Fri, 99 Nov 2026 12:00:00 GMT", None),
        ("Fri, 20 Nov 99999 12:01:00 GMT", None),
    ],
)  # fmt: skip
def test_retry_after_is_read_in_both_forms_up_to_the_cap(text: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(text, NOW.timestamp(), 3600) == seconds


def test_date_without_a_zone_is_in_utc_wherever_we_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert retry_after_seconds("Fri, 20 Nov 2026 12:01:00 -0000", NOW.timestamp(), 3600) == 60
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.text(max_size=200))
def test_any_retry_after_gives_nothing_or_a_wait_within_the_cap(text: str) -> None:
    found = retry_after_seconds(text, NOW.timestamp(), 60)
    assert found is None or 0 <= found <= 60


@given(st.integers(0, 10**6))
def test_dates_are_as_good_as_seconds(seconds: int) -> None:
    date = format_datetime(datetime.fromtimestamp(NOW.timestamp() + seconds, UTC), usegmt=True)
    assert retry_after_seconds(date, NOW.timestamp(), 10**7) == seconds
