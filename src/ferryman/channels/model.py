"""The things that are sent, and the interface of a channel."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ferryman.channels.outcome import Code, Outcome
from ferryman.runtime.errors import Permanent
from ferryman.runtime.user_functions import named


@dataclass(frozen=True, slots=True)
class Post:
    """An HTTP request with the method POST. Its `repr` shows no body, no secret and no part of the URL that may be one.

    `id` becomes the header `webhook-id`: the receiver finds duplicates by it. Every secret signs
    the request (Standard Webhooks); a secret is `whsec_` and base64, or any other text as it is. `bearer` becomes the
    header `Authorization`. A courier fills in the row's id, and the secrets or the token of its outbox.
    """

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    id: str = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    bearer: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse values of another type, where they are given."""
        for name, kind, said in _POST_TYPES:
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name} of a Post must be {said}, not {named(value)}")
        if self.headers and not all(isinstance(text, str) for pair in self.headers.items() for text in pair):
            raise TypeError("headers of a Post must be a mapping of texts to texts")
        if self.secrets and not all(isinstance(secret, str) for secret in self.secrets):
            raise TypeError("secrets of a Post must be texts")


_POST_TYPES: tuple[tuple[str, Any, str], ...] = (
    ("url", str, "text"),
    ("body", bytes, "bytes: encode it, as in json.dumps(data).encode()"),
    ("id", str, "text, such as row.id"),
    ("content_type", str, "text"),
    ("headers", Mapping, "a mapping of texts to texts"),
    ("secrets", (tuple, list), "a tuple of texts, such as (secret,)"),
    ("bearer", (str, type(None)), "text or None"),
)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A mail that may have been sent already: the age of its first attempt, and the provider's name for it."""

    age_seconds: float
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Mail:
    """An e-mail to one recipient. Its `repr` shows no address and no text.

    A courier fills in the rest. The key is derived from the row's idempotency key and the edition, which is a hash of
    what the row holds: a corrected row is a new mail. `doubt` is set if an earlier attempt may have arrived.
    """

    to: str = field(repr=False)
    subject: str = field(repr=False)
    text: str = field(repr=False)
    html: str | None = field(default=None, repr=False)
    key: str = ""
    edition: str | None = None
    doubt: Doubt | None = None


MailPart: TypeAlias = Literal["to", "subject", "text", "html", "key"]


class InvalidMail(Permanent):
    """A mail or an address that cannot be sent. The message shows none of it; `part` says which part is wrong."""

    def __init__(self, message: str, part: MailPart = "to", code: Code = Code.MAIL_INVALID) -> None:
        super().__init__(message)
        self.part = part
        self.code = code


class InvalidEndpoint(Permanent):
    """A URL that no request may go to. The message shows none of it: it may hold a secret."""


class Channel(Protocol):
    """A way to send one item. All methods run in the event loop of `Sending`; many sends run at once.

    `send` answers with an outcome. What it raises is a bug: the item is tried again, and the log has the traceback.
    It must not block, and should end before the deadline, when it is cancelled. A channel of a user's own may
    do without `open` and `close`.
    """

    async def open(self) -> None:
        """Make ready for sends. An error ends the start of the process."""

    async def send(self, item: Any) -> Outcome:
        """Send one item once, and return what became of it."""

    async def close(self) -> None:
        """Give up what `open` made, after the last send."""
