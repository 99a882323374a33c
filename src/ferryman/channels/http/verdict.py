"""The meaning of an HTTP answer: pure functions, without a clock."""

from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from ferryman.channels.outcome import Code, Delivered, Outcome, Rejected, Retry

_REJECTED = {
    401: Code.NOT_AUTHORIZED,
    403: Code.NOT_AUTHORIZED,
    404: Code.NOT_FOUND,
    407: Code.NOT_AUTHORIZED,
    410: Code.GONE,
}
_RETRIED = {408: Code.ANSWER_RETRY, 425: Code.ANSWER_RETRY, 429: Code.RATE_LIMITED}
_MOST_DIGITS = 12


def body_too_large(size: int, most: int) -> Rejected:
    """Return the outcome of a body that is larger than `http.max_body_bytes`."""
    return Rejected(f"the body has {size} bytes, and http.max_body_bytes allows {most}", Code.BODY_TOO_LARGE)


def verdict(
    status: int, *, retry_after: str | None, now: float, cap_seconds: float, excerpt: str | None = None
) -> Outcome:
    """Return what an answer means. `now` is the time in seconds since 1970, for dates in Retry-After."""
    if 200 <= status <= 299:
        return Delivered(excerpt=excerpt, http_status=status)
    words = f"the receiver answered {status}{_phrase(status)}"
    code = Code.SERVER_FAILED if 500 <= status <= 599 else _RETRIED.get(status)
    if code is not None:
        return Retry(words, code, retry_after_seconds(retry_after, now, cap_seconds), excerpt, status)
    if 300 <= status <= 399:
        return Rejected(f"{words}: redirects are not followed", Code.REDIRECTED, excerpt, http_status=status)
    return Rejected(words, _REJECTED.get(status, Code.REFUSED), excerpt, http_status=status)


def retry_after_seconds(text: str | None, now: float, cap_seconds: float) -> float | None:
    """Return the wait that a receiver asks for, in seconds or as a date, up to the cap. None if it is not readable."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), cap_seconds) if len(text) <= _MOST_DIGITS else cap_seconds
    try:
        date = parsedate_to_datetime(text[:100])
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(seconds, 0.0), cap_seconds)


def _phrase(status: int) -> str:
    """Return the name of a status as the standard has it: that of the answer could be anything."""
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""
