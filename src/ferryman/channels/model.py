"""The things that are sent, and the interface of a channel."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ferryman.channels.outcome import Outcome


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
