"""Recording payments: the request and the message that has it done, in the writer's own transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from ferryman import FerrymanError, Message, append_many
from ferryman.services.payments import store
from ferryman.services.payments.rules import Payment, Rules
from ferryman.services.payments.store import Connection, Recorded, Request


class AnotherRequest(FerrymanError):
    """A payment with this uuid is recorded, and it is not this one."""

    def __init__(self, uuid: UUID) -> None:
        super().__init__(
            f"a payment {uuid} is recorded already, with another body", remedy="give each payment a uuid of its own"
        )
        self.uuid = uuid


def record(
    db: Connection, requests: Sequence[Request], rules: Rules, headers: Mapping[str, str] | None = None
) -> list[Recorded]:
    """Each payment once, however often it is sent; how each stands. All of them, or none."""
    found, _ = _recorded(db, requests, rules, headers or {})
    return found


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
    new = store.record(db, list(wanted.values()), rules.answer_seconds)
    messages = [message for uuid in wanted if uuid in new for message in _messages(rules, wanted[uuid])]
    if messages:
        append_many(db, [replace(each, headers=headers) for each in messages] if headers else messages)
    before = [uuid for uuid in wanted if uuid not in new]
    found = {**new, **(store.find(db, before) if before else {})}
    for uuid in before:
        if found[uuid].request != wanted[uuid]:
            raise AnotherRequest(uuid)
    return [found[each.uuid] for each in requests], bool(new)


def _messages(rules: Rules, request: Request) -> Sequence[Message]:
    payment = Payment(
        request.uuid, request.wallet_id, request.amount, request.currency, request.fulfil, "DEDUCTING", 1, None
    )
    return rules.requested(payment, request.reference)
