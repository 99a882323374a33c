"""Mails by Resend's API, which knows a key for a day: asking again under the same key sends nothing twice."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.headerregistry import Address
from typing import Any

from ferryman.channels.email.mail import Letter
from ferryman.channels.email.provider import CannotTell, Found, LoneFailures
from ferryman.channels.http.client import HttpAnswer, HttpChannel
from ferryman.channels.http.verdict import retry_after_seconds
from ferryman.channels.model import Post
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable
from ferryman.runtime.redaction import MASK
from ferryman.runtime.settings_email import Email
from ferryman.runtime.settings_http import Http

_WINDOW_SECONDS = 23 * 3600.0
"""Resend keeps a key for 24 hours from the first request on."""
_UNREACHED = frozenset({Code.NAME_NOT_RESOLVED, Code.CONNECTION_FAILED, Code.CONNECTION_TIMED_OUT, Code.TLS_FAILED})
_UNREAD = _UNREACHED | {Code.RATE_LIMITED}
"""Failures that no mail is the reason for: nobody looked at it."""
_REFERENCE = re.compile(r"[A-Za-z0-9-]{1,100}")
_JSON_GROWTH = 6
"""A control character of one byte takes so many in JSON."""
_ENVELOPE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ResendAnswer:
    """An answer of the API."""

    status: int
    content: Mapping[str, str] = field(default_factory=dict)
    after_seconds: float | None = None


class ResendProvider:
    """Resend's API. It has no search by key: it can be asked about a mail whose id it has told."""

    window_seconds = _WINDOW_SECONDS
    settling_seconds = 0.0

    def __init__(self, email: Email, http: Http, sender: Address, slots: int) -> None:
        assert email.resend.key is not None
        self._url = f"{email.resend.url}/emails"
        self._key = email.resend.key.get_secret_value()
        self._sender = str(sender)
        self._cap_seconds = http.retry_after_cap_seconds
        settings = {
            "allow": ["0.0.0.0/0", "::/0"],  # the address is a setting: no row can choose it
            "timeout_seconds": email.timeout_seconds,
            "connect_timeout_seconds": min(http.connect_timeout_seconds, email.timeout_seconds),
            "max_body_bytes": email.max_bytes * _JSON_GROWTH + _ENVELOPE_BYTES,
        }
        self._http = HttpChannel(http.model_copy(update=settings), slots=slots)
        self._lone = LoneFailures()

    async def open(self) -> None:
        await self._http.open()

    async def close(self) -> None:
        await self._http.close()

    async def send(self, letter: Letter) -> Outcome:
        headers = {"Idempotency-Key": letter.key}
        answer = await self._ask(Post(self._url, self._body(letter), letter.key, headers=headers, bearer=self._key))
        outcome = outcome_of(answer, letter)
        unread = getattr(outcome, "code", None) in _UNREAD
        return outcome if unread else self._lone.judged(letter.key, outcome)

    def can_find(self, reference: str | None) -> bool:
        return reference is not None and _REFERENCE.fullmatch(reference) is not None

    async def find(self, letter: Letter, reference: str | None) -> Found | CannotTell:
        """Look a mail up by its id. An id that is unknown proves nothing: Resend forgets mails after some time."""
        answer = await self._ask(Post(f"{self._url}/{reference}", b"", letter.key, bearer=self._key), "GET")
        if not isinstance(answer, ResendAnswer) or answer.status == 429 or answer.status >= 500:
            outcome = outcome_of(answer, letter)  # a question sends nothing: it leaves no doubt of its own
            return CannotTell(replace(outcome, in_doubt=False) if isinstance(outcome, Unavailable) else outcome)
        return Found(reference) if answer.status == 200 else CannotTell()

    async def _ask(self, post: Post, method: str = "POST") -> ResendAnswer | Outcome:
        answer = await self._http.ask(post, method)
        if not isinstance(answer, HttpAnswer):
            return answer
        after = retry_after_seconds(answer.retry_after, time.time(), self._cap_seconds)
        content = _object(answer.body)
        shown = {name: value.replace(self._key, MASK) for name, value in content.items() if isinstance(value, str)}
        return ResendAnswer(answer.status, shown, after)

    def _body(self, letter: Letter) -> bytes:
        """Return the request, which is the same for each attempt: Resend compares it."""
        content: dict[str, Any] = {
            "from": self._sender, "to": [letter.to.addr_spec], "subject": letter.subject, "text": letter.text
        }  # fmt: skip
        if letter.html is not None:
            content["html"] = letter.html
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def outcome_of(answer: ResendAnswer | Outcome, letter: Letter) -> Outcome:
    """Return what an answer means, or that there was none. If the provider fails once it had it, it may be sent."""
    if isinstance(answer, ResendAnswer) and answer.status < 500:
        return _answered(answer, letter)
    if isinstance(answer, ResendAnswer):
        error, code, after = _error(answer, letter), Code.SERVER_FAILED, answer.after_seconds
    else:
        assert isinstance(answer, Retry | Rejected | Unavailable)
        if isinstance(answer, Rejected):
            return _unsent(answer)
        if answer.code in _UNREACHED:
            return Unavailable(f"the provider cannot be reached: {answer.error}", answer.code)
        error, code, after = f"the provider may have the mail: {answer.error}", answer.code, None
    return Unavailable(error, code, after, in_doubt=True)


def _answered(answer: ResendAnswer, letter: Letter) -> Outcome:
    """Return what an answer below 500 means: the status, and the name of the error in it."""
    status, name, error = answer.status, answer.content.get("name"), _error(answer, letter)
    if 200 <= status <= 299:
        reference = answer.content.get("id", "")
        return Delivered(reference if _REFERENCE.fullmatch(reference) else None)
    if name == "invalid_idempotent_request":
        return Held(f"{error}: it has another mail under this key", Code.KEY_TAKEN)
    if status in (408, 409, 425):
        return Retry(error, Code.ANSWER_RETRY, answer.after_seconds)
    for reason in ((status, name), name, status):
        if reason in _CONCERN_ALL:
            remedy, code = _CONCERN_ALL[reason]
            return Unavailable(f"{error}{remedy}", code, answer.after_seconds)
    return Rejected(error, Code.MAIL_TOO_LARGE if status == 413 else Code.REFUSED)


_UNVERIFIED = (": verify the domain of email.sender", Code.SENDER_REFUSED)
_NO_KEY = (": the key in email.resend.key is not accepted", Code.LOGIN_REFUSED)
_WRONG_URL = (": see email.resend.url", Code.NOT_FOUND)
_CONCERN_ALL: dict[object, tuple[str, Code]] = {
    (403, "validation_error"): _UNVERIFIED, "invalid_from_address": _UNVERIFIED, 401: _NO_KEY, 403: _NO_KEY,
    404: _WRONG_URL, 405: _WRONG_URL, 407: _WRONG_URL, 429: ("", Code.RATE_LIMITED),
    **dict.fromkeys(range(300, 400), (": see email.resend.url", Code.REDIRECTED)),
}  # fmt: skip
"""Answers that concern all mails alike, by their status, their name or both: these wait, and use up no attempt."""


def _unsent(why: Rejected) -> Outcome:
    """Return the outcome of a request that could not be made: it is too large, or the URL in the settings is wrong."""
    if why.code is Code.BODY_TOO_LARGE:
        return Rejected(why.error, Code.MAIL_TOO_LARGE)
    return Unavailable(f"{why.error}: see email.resend.url", why.code)


def _error(answer: ResendAnswer, letter: Letter) -> str:
    name = answer.content.get("name", "")[:100]
    words = letter.told(f"{name} ({answer.content.get('message', '')})") if name else ""
    return f"the provider answered {answer.status} {words}".rstrip()


def _object(body: bytes | bytearray) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
