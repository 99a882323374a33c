"""Audits of two databases without Kafka, to the last payment."""

from typing import Any
from uuid import UUID

from ferryman.evidence.audit.model import Books
from ferryman.evidence.audit.walk import begin
from ferryman.services.payments.store import Request
from support.houses import Town


def audited(town: Town, **window: Any) -> Books:
    """Of everything up to this moment."""
    audit = begin(town.databases, town.settings, **window)
    if "until" not in window:
        audit.books.window = audit.books.window._replace(until=audit.books.window.until.replace(year=2999))
    audit.moment_seconds = 0.01
    return audit.run()


def whats(books: Books) -> list[tuple[str, UUID | None]]:
    return [(each.what, each.id) for each in books.wrong]


def over(town: Town, *payments: Request) -> None:
    """Handled, applied, and over."""
    town.consume(*payments)
    town.answer(*payments)
