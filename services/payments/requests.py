"""Recording payments: the request and the message that starts it, in the writer's own transaction."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from uuid import UUID

from ferryman import FerrymanError, Message, Permanent, Transient, append_many, encoded
from ferryman.services.payments import store
from ferryman.services.payments.rules import Payment, Rules
from ferryman.services.payments.store import Connection, RecordedPayment, Request


class AnotherRequest(FerrymanError):
    """A different payment is recorded with this uuid."""

    def __init__(self, uuid: UUID) -> None:
        super().__init__(
            f"a payment {uuid} is recorded already, with another body", remedy="give each payment a uuid of its own"
        )


class OutOfBounds(Permanent):
    """A value that no payment may have."""


class NotFulfilled(Permanent):
    """A request for fulfilment in the literal mode, which knows only the wallet."""


def record(
    db: Connection, requests: Sequence[Request], rules: Rules, headers: Mapping[str, str] | None = None
) -> tuple[list[RecordedPayment], bool]:
    """Record each payment once, however often it is sent: all of them, or none.

    Return how each stands, and True if any is new. Every message that follows carries the headers.
    """
    if not requests:
        return [], False
    wanted = {each.uuid: each for each in requests}
    for each in requests:
        if wanted[each.uuid] != each:
            raise AnotherRequest(each.uuid)
        _check(each)
    with nullcontext() if len(wanted) == 1 and not rules.literal else _together(db):
        new = _new(db, list(wanted.values()), rules, headers)
        before = [uuid for uuid in wanted if uuid not in new]
        found = {**new, **(store.find(db, before) if before else {})}
        if gone := [wanted[uuid] for uuid in before if uuid not in found]:
            _new(db, gone, rules, headers)  # archived in the meantime: this refuses it
            raise Transient(f"the payment {gone[0].uuid} was recorded and removed in the meantime")
        for uuid in before:
            if found[uuid].request != wanted[uuid]:
                raise AnotherRequest(uuid)
    return [found[each.uuid] for each in requests], bool(new)


def _check(request: Request) -> None:
    """Refuse values outside the API's bounds: the API must be able to show what is recorded by other means too."""
    uuid, _, amount, currency, _, reference = request
    if not 0 < amount <= store.MOST_AMOUNT:
        said, remedy = f"an amount of {amount}", f"give a whole number from 1 to {store.MOST_AMOUNT}"
    elif not (len(currency) == 3 and currency.isascii() and currency.isalpha() and currency.isupper()):
        said, remedy = f"the currency {currency[:10]!r}", "give three capital letters, as in ISO 4217"
    elif reference is not None and ("\0" in reference or len(reference) > store.LONGEST_REFERENCE):
        said = "a reference that cannot be stored"
        remedy = f"give at most {store.LONGEST_REFERENCE} characters, none of them NUL"
    else:
        return
    raise OutOfBounds(f"the payment {uuid} has {said}", remedy=remedy)


def _new(
    db: Connection, requests: Sequence[Request], rules: Rules, headers: Mapping[str, str] | None
) -> Mapping[UUID, RecordedPayment]:
    """Record the payments that are new, with the messages that start them, and return these payments.

    The messages go to the journal, or in the literal mode to an outbox table of its own. A single payment is recorded
    by one statement, which needs no transaction around it.
    """
    if rules.literal:
        _refuse_fulfilment(db, requests)
    elif len(requests) == 1:
        messages = [encoded(each) for each in _messages(rules, requests[0], headers)]
        return store.record_one(db, requests[0], rules.settings.answer_seconds, messages)
    new = store.record(db, requests, None if rules.literal else rules.settings.answer_seconds)
    fresh = [(each.uuid, m) for each in requests if each.uuid in new for m in _messages(rules, each, headers)]
    if rules.literal:
        store.enqueue(db, [(uuid, encoded(message)) for uuid, message in fresh])
    else:
        append_many(db, [message for _, message in fresh])
    return new


def _refuse_fulfilment(db: Connection, requests: Sequence[Request]) -> None:
    """Refuse new payments that ask for fulfilment: in the literal mode they could never succeed."""
    if not (asked := [each.uuid for each in requests if each.fulfil]):
        return
    known = store.find(db, asked)
    if new := [uuid for uuid in asked if uuid not in known]:
        raise NotFulfilled(
            f"the payment {new[0]} asks to be fulfilled, which the literal mode does not do",
            remedy='leave `fulfil` out, or set payments.mode = "saga"',
        )


@contextmanager
def _together(db: Connection) -> Iterator[None]:
    """Make the block all or nothing: in autocommit mode, and in a transaction that goes on after a refusal."""
    if not db.autocommit:
        db.execute("")  # begins the transaction, which its owner commits; ours is a savepoint in it
    with db.transaction():
        yield


def _messages(rules: Rules, request: Request, headers: Mapping[str, str] | None) -> Sequence[Message]:
    uuid, wallet_id, amount, currency, fulfil, reference = request
    messages = rules.requested(Payment(uuid, wallet_id, amount, currency, fulfil, "DEDUCTING", 1, None), reference)
    return [replace(each, headers=headers) for each in messages] if headers else messages
