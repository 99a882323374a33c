"""The wallet of the literal mode: each message is tried once, and its payment is reported by HTTP, best effort.

It decides and books like the other wallet, but does nothing about failures.
"""

import json
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import psycopg
import structlog

from ferryman import Consumer, Done, Misconfigured, Received, Refused
from ferryman.services.wallet import store
from ferryman.services.wallet.consumer import KINDS, handle

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 2.0
DEDUCT = "wallet.deduct"

Put = Callable[[Received, Done | Refused], None]


def wallet(settings: Any) -> Consumer:
    """Return the consumer that reports payments to the address in the settings under [payments]."""
    given = settings.payments
    if given.mode != "literal":
        raise Misconfigured(
            "this wallet sends no results, and in the saga mode payments wait for them", setting="payments.mode",
            remedy="run `wallet`, or set the mode to literal",
        )  # fmt: skip
    for name in ("internal_url", "internal_token"):
        if not getattr(given, name):
            raise Misconfigured("the literal wallet reports payments by HTTP", setting=f"payments.{name}",
                                remedy="set it to the address and the token of the API")  # fmt: skip
    if not _is_address(given.internal_url):
        raise Misconfigured(f"{given.internal_url} is not an HTTP address", setting="payments.internal_url",
                            remedy="write http://host:port")  # fmt: skip
    token = given.internal_token.get_secret_value()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Misconfigured("a bearer token is one word of ASCII", setting="payments.internal_token",
                            remedy="set the token itself, on one line")  # fmt: skip
    return consumer(putting(given.internal_url, token))


def consumer(put: Put) -> Consumer:
    """Return the consumer. Its name is that of the other wallet, so that each knows what the other has handled."""
    made = Consumer(
        "wallet", topics=["payments.commands"], connection=psycopg.Connection, mode="at_most_once",
        unknown="ignore", rereport=False,
    )  # fmt: skip

    @made.handles_batch(*KINDS)
    def decide(db: store.Connection, messages: Sequence[Received]) -> list[Done | Refused]:
        """Decide like the other wallet, without sending messages."""
        return [Refused(each.reason) if isinstance(each, Refused) else Done() for each in handle(db, messages)]

    @made.after_commit
    def notify(handled: Sequence[tuple[Received, Done | Refused]]) -> None:
        for message, outcome in handled:
            if message.type == DEDUCT:
                put(message, outcome)

    return made


def putting(url: str, token: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Put:
    """Return a function that reports a payment once, without a proxy. A failure is logged as a warning."""
    opener = build_opener(ProxyHandler({}))

    def put(message: Received, outcome: Done | Refused) -> None:
        request = Request(
            f"{url.rstrip('/')}/internal/requests/{message.data['request_id']}",
            json.dumps(told(message, outcome)).encode(), method="PUT",
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
        )  # fmt: skip
        try:
            opener.open(request, timeout=timeout_seconds).close()
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(error, HTTPError):
                error.close()
            why = type(error).__name__ if isinstance(error, ValueError) else str(error)[:500]  # it may quote headers
            log.warning("payment not told", request_id=str(message.data["request_id"]), error=why)

    return put


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def told(message: Received, outcome: Done | Refused) -> dict[str, Any]:
    """Return the body of the report: the result, the wallet and the amount."""
    reason = outcome.reason if isinstance(outcome, Refused) else None
    return {
        "status": "FAILED" if reason else "SUCCEEDED",
        "reason": reason,
        "wallet_id": str(message.data["wallet_id"]),
        "amount": message.data.get("amount"),
        "currency": message.data.get("currency"),
    }
