"""`ferryman trace`"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, say
from ferryman.cli.trace_story import print_story
from ferryman.evidence.addressing import wallet_address
from ferryman.evidence.databases import WALLETS
from ferryman.evidence.trace import kafka
from ferryman.evidence.trace.gathering import gather, payment_of
from ferryman.evidence.trace.model import WALLET, Ending, Event, Known, Payment, Story
from ferryman.evidence.trace.opening import Desks, open_desks
from ferryman.evidence.trace.story import tell
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.exits import Exit
from ferryman.runtime.settings import Settings
from ferryman.runtime.sources import Loaded

SEARCH_SECONDS = 10.0


@click.command("trace")
@click.argument("identity", type=click.UUID, metavar="ID")
@click.option("--no-kafka", is_flag=True, help="Ask the databases alone.")
@json_option
@click.pass_context
def command(context: click.Context, *, identity: UUID, no_kafka: bool, as_json: bool) -> int:
    """Tell one payment's story across both databases and Kafka: what happened, where it is now, why, what to run next.

    \b
      ferryman trace 9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10
      ferryman trace 9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10 --json --no-kafka

    ID is the payment's own, or that of any message of it: a command, a result, an event. A payment is found at once,
    however much is retained; a message that only stands in an outbox is looked for among the newest entries first, for
    10 seconds. database_url names the orchestrator's database, payments.wallet_database_url the wallet's. Where one
    of them or Kafka does not answer, the rest is told, what is missing is said, and the exit code is 5; 1 where nobody
    knows the id.
    """
    loaded = wiring.loaded(context)
    settings = wiring.settings(context)
    with open_desks(settings) as desks:
        known = _known(desks, identity)
        if not no_kafka and settings.kafka.bootstrap_servers:
            known = _with_kafka(settings, desks, known)
    told = tell(known)
    story = Story(told.events, told.ending if desks.one else addressed(told.ending, loaded))
    if as_json:
        print_json(_as_dict(known, story))
    else:
        print_story(known, story)
        for each in known.missing:
            say(f"not looked at: {each}")
    return Exit.PARTIAL if known.missing else Exit.OK


def _known(desks: Desks, identity: UUID) -> Known:
    """Of the payment with this id, or of that which the message with this id is of."""
    known = gather(desks, identity)
    if known.payment or known.ledger or known.literal:
        return known
    payment, looked = payment_of(desks, identity, SEARCH_SECONDS)
    if payment is not None and _something(of_payment := gather(desks, payment)):
        return of_payment
    if _something(known):  # a message by itself: in the literal mode a command has its payment's id
        return known
    raise FerrymanError(
        f"nobody knows {identity}: no payment has this id, and it is no message's in {'; '.join(looked)}"
        + "".join(f". Not looked at: {each}" for each in known.missing),
        remedy="its transaction may not have committed; what is older than the retention is gone for good",
    )


def _something(known: Known) -> bool:
    sides = [each for each in (known.orchestrator, known.wallet) if each is not None]
    return bool(known.payment or known.ledger or any(each.entries or each.receipts for each in sides))


def _with_kafka(settings: Settings, desks: Desks, known: Known) -> Known:
    """What a group is past is looked at once more: its receipt may have been written since the database was asked."""
    try:
        found = kafka.look(settings.kafka, kafka.sought(known))
    except FerrymanError as error:
        return replace(known, missing=[*known.missing, f"Kafka: {error}"])
    if any(each.read for copies in found.values() for each in copies):
        known = gather(desks, known.id)
    return replace(known, kafka=found)


def addressed(ending: Ending, loaded: Loaded) -> Ending:
    """What is to be done in the wallet's database says so."""
    if ending.next is None or ending.at != WALLET:
        return ending
    return replace(ending, next=wallet_address(loaded.settings, loaded.origins.get(WALLETS)).of(ending.next))


def _as_dict(known: Known, story: Story) -> dict[str, Any]:
    return {
        "id": str(known.id),
        "payment": known.payment and _payment(known.payment),
        "events": [_event(each) for each in story.events],
        "now": story.ending.now,
        "why": story.ending.why,
        "next": story.ending.next,
        "missing": list(known.missing),
    }


def _payment(payment: Payment) -> dict[str, Any]:
    plain = ("amount", "currency", "fulfil", "status", "state", "reason", "attempt")
    return {
        "wallet_id": str(payment.wallet_id),
        **{name: getattr(payment, name) for name in plain},
        **{name: _iso(getattr(payment, name)) for name in ("created_at", "changed_at", "due_at")},
    }


def _event(event: Event) -> dict[str, Any]:
    detail: Mapping[str, Any] = event.detail
    return {
        "at": _iso(event.at), "where": event.where, "what": event.what, "times": event.times, "bad": event.bad, **detail
    }  # fmt: skip


def _iso(at: Any) -> str | None:
    return None if at is None else str(at.isoformat())
