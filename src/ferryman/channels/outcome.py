"""The outcomes of a send as values, and the codes of what can go wrong.

    Delivered     the destination has it
    Retry         it failed, and may succeed later
    Rejected      it cannot succeed as it is
    Unknown       it may have arrived
    Unavailable   the destination takes nothing now, whatever is sent
    Held          it may have arrived, and only a person can find out

Match them exhaustively. The words of an error may be stored and shown to the row's owner: they hold no secret and no
address of our own network. A code is a label of metrics: a fixed list, and never a destination.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from ferryman.message import Message
from ferryman.runtime.redaction import stored_error


class Code(StrEnum):
    """The reasons why something was not delivered. The text after each is its meaning for people."""

    # The item cannot be sent as it is.
    URL_INVALID = "URL_INVALID"
    """The URL is not http or https, has no host, or holds a user or a password."""
    ID_INVALID = "ID_INVALID"
    """The id cannot be signed: it is empty, too long, or has a dot, a space or a character that is not ASCII."""
    HEADER_INVALID = "HEADER_INVALID"
    """A header cannot be sent, or belongs to the channel."""
    SECRET_INVALID = "SECRET_INVALID"  # noqa: S105 - the name of a reason
    """A secret is empty or is not valid base64, or a bearer token cannot be a header."""
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    """The body is larger than `http.max_body_bytes`."""

    # There was no answer.
    NAME_NOT_RESOLVED = "NAME_NOT_RESOLVED"
    """DNS knows no address of the host."""
    ADDRESS_NOT_ALLOWED = "ADDRESS_NOT_ALLOWED"
    """Every address of the host is one that requests may not go to: see `http.allow`."""
    CONNECTION_FAILED = "CONNECTION_FAILED"
    """No connection could be made."""
    CONNECTION_TIMED_OUT = "CONNECTION_TIMED_OUT"
    """No connection was made within `http.connect_timeout_seconds`."""
    TLS_FAILED = "TLS_FAILED"
    """The certificate is not valid, or no encryption could be agreed on."""
    CONNECTION_LOST = "CONNECTION_LOST"
    """The connection was closed before there was an answer."""
    TIMED_OUT = "TIMED_OUT"
    """There was no answer within `http.timeout_seconds`."""
    ANSWER_INVALID = "ANSWER_INVALID"
    """The answer is not HTTP, or has too many or too long headers."""

    # There was an answer.
    REDIRECTED = "REDIRECTED"
    """3xx: redirects are not followed."""
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    """401, 403 or 407: the secret or the token is not accepted."""
    NOT_FOUND = "NOT_FOUND"
    """404: there is nothing at this URL."""
    GONE = "GONE"
    """410: the receiver wants no more."""
    REFUSED = "REFUSED"
    """Any other answer that says that the request cannot succeed."""
    ANSWER_RETRY = "ANSWER_RETRY"
    """408 or 425: the receiver asks for another attempt."""
    RATE_LIMITED = "RATE_LIMITED"
    """429: too many requests."""
    SERVER_FAILED = "SERVER_FAILED"
    """5xx: the receiver failed."""

    # E-mail.
    MAIL_INVALID = "MAIL_INVALID"
    """The mail cannot be made: an address, the subject or the text is missing or not valid."""
    MAIL_TOO_LARGE = "MAIL_TOO_LARGE"
    """The mail is larger than `email.max_bytes`, or than the server takes."""
    SENDER_REFUSED = "SENDER_REFUSED"
    """The server or the provider does not take mail from this sender."""
    RECIPIENT_REFUSED = "RECIPIENT_REFUSED"
    """The server or the provider does not take mail for this recipient."""
    MAILBOX_BUSY = "MAILBOX_BUSY"
    """The recipient takes no mail now: greylisting, a full mailbox, a limit of its own."""
    LOGIN_REFUSED = "LOGIN_REFUSED"
    """The server or the provider does not accept our user, password or key: see [email]."""
    SERVER_BUSY = "SERVER_BUSY"
    """The mail server takes nothing now, and says so."""
    KEY_TAKEN = "KEY_TAKEN"
    """The provider has another mail under the same key."""
    NOT_LOOKED_UP = "NOT_LOOKED_UP"
    """An earlier attempt may have arrived, and nobody can be asked."""

    # The send itself went wrong.
    DEADLINE_PASSED = "DEADLINE_PASSED"
    """The channel gave no outcome within its deadline, so the item may have arrived."""
    CHANNEL_BUG = "CHANNEL_BUG"
    """The channel raised an error, or answered with something that is not an outcome: the log has the traceback."""
    WORKER_LOST = "WORKER_LOST"
    """Too many processes died while they had the row."""
    OTHER = "OTHER"
    """A reason that only the channel knows: the error names it."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination has the item. `reference` is its name there, `excerpt` the beginning of what it answered."""

    reference: str | None = None
    excerpt: str | None = None
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The item failed and may succeed later, after so many seconds if the destination said so."""

    error: str
    code: Code = Code.OTHER
    after_seconds: float | None = None
    excerpt: str | None = None
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The item cannot succeed as it is. `reports` are messages about it, for a courier that refuses a row."""

    error: str
    code: Code = Code.OTHER
    excerpt: str | None = None
    reports: tuple[Message, ...] = ()
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """The item may have arrived."""

    error: str
    code: Code = Code.OTHER
    excerpt: str | None = None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The destination takes nothing now, whatever is sent; the item itself did not fail.

    If `in_doubt` is true, it may have arrived all the same: the destination failed after it had the item.
    """

    error: str
    code: Code = Code.OTHER
    after_seconds: float | None = None
    excerpt: str | None = None
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The item may have arrived, the destination cannot tell, and it must not be sent twice: a person decides."""

    error: str
    code: Code = Code.OTHER
    excerpt: str | None = None


Outcome: TypeAlias = Delivered | Retry | Rejected | Unknown | Unavailable | Held
"""The result of one send."""

WORDS: Mapping[type, str] = {
    Delivered: "delivered", Retry: "failed", Rejected: "rejected", Unknown: "unknown", Unavailable: "unavailable",
    Held: "held",
}  # fmt: skip
"""The word of each outcome in the attempt log and in metrics."""


def storable(outcome: Outcome) -> Outcome:
    """Return the outcome as the database can hold it. Raise an error if that is not possible."""
    changed: dict[str, Any] = {
        name: _text(given) for name in ("code", "reference", "excerpt")
        if (given := getattr(outcome, name, None)) is not None and type(given) is not Code
    }  # fmt: skip
    if not isinstance(outcome, Delivered):
        changed["error"] = stored_error(_text(outcome.error)) or type(outcome.error).__name__
    if (after := getattr(outcome, "after_seconds", None)) is not None:
        changed["after_seconds"] = seconds = float(after)
        if not math.isfinite(seconds):
            raise ValueError(f"{seconds} is not a number of seconds")
    return replace(outcome, **changed) if changed else outcome


def _text(given: object) -> str:
    """Return text that PostgreSQL takes: without NUL, and without half characters."""
    return str(given).replace("\0", "").encode("utf-8", "replace").decode()
