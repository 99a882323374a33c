"""ChancePay to the letter: each request leaves by an outbox table of its own, and nothing ever asks for it again.

The relay sends the rows as a described outbox. A row that failed five times stays PENDING, and so does its request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ferryman import Permanent, encoded
from ferryman.services.payments import store
from ferryman.services.payments.rules import Payment, Rules
from ferryman.services.payments.store import Connection, Request

OUTBOX: Mapping[str, Any] = {
    "table": "payments.outbox",
    "columns": {
        "id": "uuid",
        "attempts": "try_count",
        "error": "last_error",
        "done_at": "published_at",
    },
    "words": {"pending": ["PENDING"], "done": "PUBLISHED"},
    "lease": {"column": "last_attempt_at", "seconds": 60},
    "retry": {"limit": 5, "base_seconds": 1, "cap_seconds": 60, "count_outages": True},
}
"""`[outbox.payments]`, as it stands where nothing else is set."""


class NotFulfilled(Permanent):
    """The document knows of nobody behind the wallet."""


def enqueue(db: Connection, requests: Sequence[Request], rules: Rules, headers: Mapping[str, str]) -> None:
    """A row for each, beside the requests and in their transaction."""
    commands = [(each.uuid, replace(rules.commanded(_payment(each)), headers=headers)) for each in requests]
    store.enqueue(db, [(uuid, encoded(command)) for uuid, command in commands])


def refuse_fulfilment(requests: Sequence[Request]) -> None:
    """What is recorded must be able to succeed."""
    if asked := next((each.uuid for each in requests if each.fulfil), None):
        raise NotFulfilled(
            f"the payment {asked} asks to be fulfilled, which the literal mode does not do",
            remedy='leave `fulfil` out, or set payments.mode = "saga"',
        )


def _payment(request: Request) -> Payment:
    uuid, wallet_id, amount, currency, fulfil, _ = request
    return Payment(uuid, wallet_id, amount, currency, fulfil, "DEDUCTING", 1, None)
