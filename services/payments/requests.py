"""Recording payments: the request and the message that has it done, in the writer's own transaction."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from uuid import UUID

from ferryman import FerrymanError, Message, Permanent, Transient, append_many, encoded
from ferryman.services.payments import literal, store
from ferryman.services.payments.rules import Payment, Rules
from ferryman.services.payments.store import Connection, Recorded, Request


class AnotherRequest(FerrymanError):
    """A payment with this uuid is recorded, and it is not this one."""

    def __init__(self, uuid: UUID) -> None:
        super().__init__(
            f"a payment {uuid} is recorded already, with another body", remedy="give each payment a uuid of its own"
        )
        self.uuid = uuid


class OutOfBounds(Permanent):
    """It asks for what no payment may have."""


def record(
    db: Connection, requests: Sequence[Request], rules: Rules, headers: Mapping[str, str] | None = None
) -> list[Recorded]:
    """Each payment once, however often it is sent; how each stands. All of them, or none."""
    return _recorded(db, requests, rules, headers or {})[0] if requests else []


def record_one(
    db: Connection, request: Request, rules: Rules, headers: Mapping[str, str] | None = None
) -> tuple[Recorded, bool]:
    """How it stands, and whether it was not there before."""
    [found], new = _recorded(db, [request], rules, headers or {})
    return found, new


def _recorded(
    db: Connection, requests: Sequence[Request], rules: Rules, headers: Mapping[str, str]
) -> tuple[list[Recorded], bool]:
    """How each stands, and whether any was not there before. The headers are those of every message that follows."""
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
            _new(db, gone, rules, headers)  # archived in between, which it is refused for now
            raise Transient(f"the payment {gone[0].uuid} came and went meanwhile")
        for uuid in before:
            if found[uuid].request != wanted[uuid]:
                raise AnotherRequest(uuid)
    return [found[each.uuid] for each in requests], bool(new)


def _check(request: Request) -> None:
    """By the same bounds as the API: what one of the ways in lets through, the others must be able to tell of."""
    uuid, _, amount, currency, _, reference = request
    if not 0 < amount <= store.MOST_AMOUNT:
        said, remedy = f"an amount of {amount}", f"give a whole number from 1 to {store.MOST_AMOUNT}"
    elif not (len(currency) == 3 and currency.isascii() and currency.isalpha() and currency.isupper()):
        said, remedy = f"the currency {currency[:10]!r}", "give three capital letters, as ISO 4217 has them"
    elif reference is not None and ("\0" in reference or len(reference) > store.LONGEST_REFERENCE):
        said, remedy = "a reference that cannot be kept", f"give {store.LONGEST_REFERENCE} characters, none of them NUL"
    else:
        return
    raise OutOfBounds(f"the payment {uuid} has {said}", remedy=remedy)


def _new(
    db: Connection, requests: Sequence[Request], rules: Rules, headers: Mapping[str, str]
) -> Mapping[UUID, Recorded]:
    """Those that were not there before: recorded, with what has them done, by the journal or by a table of its own.

    One alone is recorded by one statement, which needs no transaction around it.
    """
    if rules.literal:
        if fulfil := [each for each in requests if each.fulfil]:
            known = store.find(db, [each.uuid for each in fulfil])
            literal.refuse_fulfilment([each for each in fulfil if each.uuid not in known])
        new = store.record(db, requests, None)
        literal.enqueue(db, [each for each in requests if each.uuid in new], rules, headers)
    elif len(requests) == 1:
        messages = [encoded(each) for each in _messages(rules, requests[0], headers)]
        new = store.record_one(db, requests[0], rules.answer_seconds, messages)
    else:
        new = store.record(db, requests, rules.answer_seconds)
        append_many(db, [m for each in requests if each.uuid in new for m in _messages(rules, each, headers)])
    return new


@contextmanager
def _together(db: Connection) -> Iterator[None]:
    """All or nothing: on a connection in autocommit mode, and in a transaction whose owner goes on after a refusal."""
    if not db.autocommit:
        db.execute("")  # it is in its transaction from here on, which is its owner's to commit
    with db.transaction():
        yield


def _messages(rules: Rules, request: Request, headers: Mapping[str, str]) -> Sequence[Message]:
    payment = Payment(
        request.uuid, request.wallet_id, request.amount, request.currency, request.fulfil, "DEDUCTING", 1, None
    )
    messages = rules.requested(payment, request.reference)
    return [replace(each, headers=headers) for each in messages] if headers else messages
