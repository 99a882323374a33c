"""`ferryman reconcile payments`: read which payments are pending and what is known of them, and mend them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, LiteralString
from uuid import UUID

from ferryman import FerrymanError, Go, append_many
from ferryman.evidence import Act, journal, kafka, messages, write_down
from ferryman.evidence.reconcile import Case, Party, Repair, SystemState, write_repair
from ferryman.evidence.sides import MAIN, Side, Sides
from ferryman.services.payments.evidence import case
from ferryman.services.payments.evidence.case import ORCHESTRATOR, LedgerRow, PaymentRow, result_of
from ferryman.services.payments.evidence.causes import Cause, judge
from ferryman.services.payments.evidence.facts import PaymentFacts, read, unpublished
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import REFUSED_DOWNSTREAM, TIMED_OUT, Payment
from ferryman.services.payments.service import rules_of

PAGE = 1_000
"""Payments that are read at once."""
_ATTEMPTS_LOOKED_AT = 3

# By the index of what is not over, in the order in which it is to be looked at. What was moved since the walk began
# stands further on now, and is left.
_PENDING: LiteralString = f"""\
-- reconcile.pending
SELECT {case.COLUMNS} FROM payments.requests r
WHERE r.due_at IS NOT NULL AND (r.due_at, r.uuid) > (%(at)s::timestamptz, %(uuid)s::uuid)
  AND r.created_at <= %(began)s::timestamptz - make_interval(secs => %(older)s) AND r.changed_at <= %(began)s
ORDER BY r.due_at, r.uuid LIMIT %(most)s
"""  # noqa: S608 - only our own columns are put in

# What was taken and told too late to be kept: by the age of that, since nothing looks after what is over. Not what the
# machine itself has undone, which only the wallet's answer ends.
_TAKEN_LATE: LiteralString = f"""\
-- reconcile.taken_late
SELECT {case.COLUMNS.replace("coalesce(r.due_at::text, '')", "s.came_at::text")}
FROM ferryman.saga_stray s CROSS JOIN LATERAL (
    SELECT * FROM payments.requests r
    WHERE r.uuid = s.saga_id AND r.state = 'FAILED' AND coalesce(r.reason, '') <> ALL (%(undone)s) OFFSET 0
) r
WHERE s.machine = 'payment' AND s.why = 'LATE' AND s.type = 'wallet.succeeded' AND s.data ->> 'kind' = 'DEDUCT'
  AND (s.came_at, s.saga_id) > (%(at)s::timestamptz, %(uuid)s::uuid)
  AND s.came_at <= %(began)s::timestamptz - make_interval(secs => %(older)s)
ORDER BY s.came_at, s.saga_id LIMIT %(most)s
"""  # noqa: S608 - same


@dataclass(frozen=True)
class PaymentReconciler:
    """Finds what is pending, judges it, and mends it."""

    sides: Sides

    def side(self, where: str) -> Side:
        return self.sides[case.WALLET if where == case.WALLET else MAIN]

    def cases(self, *, older_seconds: float, ids: Sequence[UUID] = ()) -> Iterator[list[Case]]:
        """Yield payments that are pending for so long, or FAILED and still taken; or those of them that are named.
        Nothing is open between two pages.
        """
        settings, readers = self.sides.settings, {ORCHESTRATOR: case.NAME, case.WALLET: case.WALLET}
        answer_seconds = settings.section(PaymentsSettings).answer_seconds
        lags = kafka.lags(settings.kafka, case.READS, answer_seconds)
        parties = {where: Party.ask(self.side(where), reader, lags.get(reader)) for where, reader in readers.items()}
        house = SystemState(answer_seconds, settings.consumer.receipts_retention_seconds, parties)
        for requests in self._named(ids) if ids else self._found(older_seconds):
            yield [judge(each, house) for each in gather(self.sides, requests)]

    def _named(self, ids: Sequence[UUID]) -> Iterator[list[PaymentRow]]:
        wanted = list(dict.fromkeys(ids))
        found = {each.uuid: each for each in self.sides[MAIN].ask(case.payments, wanted)}
        if missing := [str(each) for each in wanted if each not in found]:
            raise FerrymanError(
                f"there is no payment {', '.join(missing)}", remedy="correct it; archived ones are gone"
            )
        for first in range(0, len(wanted), PAGE):
            some = [found[each] for each in wanted[first : first + PAGE]]
            yield sorted((each for each in some if each.state != case.SUCCEEDED), key=lambda each: not each.mark)

    def _found(self, older_seconds: float) -> Iterator[Sequence[PaymentRow]]:
        yield from self._reads(_PENDING, older_seconds)
        named = set[UUID]()  # what was taken late may have been told of more than once
        for found in self._reads(_TAKEN_LATE, older_seconds):
            new = {each.uuid: each for each in found if each.uuid not in named}
            named |= new.keys()
            yield list(new.values())

    def _reads(self, statement: LiteralString, older: float) -> Iterator[Sequence[PaymentRow]]:
        """Read page after page of one of these statements, as of now, each from where the one before ended."""
        given: dict[str, Any] = {
            "began": self.sides[MAIN].now(), "older": older, "undone": [TIMED_OUT, REFUSED_DOWNSTREAM],
            "at": "-infinity", "uuid": UUID(int=0), "most": PAGE,
        }  # fmt: skip
        while found := self.sides[MAIN].ask(messages.rows, PaymentRow, statement, given):
            yield found
            if len(found) < PAGE:
                return
            given |= {"at": found[-1].mark, "uuid": found[-1].uuid}

    # --- mending

    def repair(self, how: Repair, cases: Sequence[Case], act: Act) -> int:
        return self._give_back(cases, how, act) if how is Repair.GIVE_BACK else self._ask_again(cases, how, act)

    def _ask_again(self, cases: Sequence[Case], how: Repair, act: Act) -> int:
        rules = rules_of(self.sides.settings)
        judged = {each.uuid: (each.state, each.attempt) for each in cases}

        def rule(payment: Payment) -> Go | None:
            """Leave a payment alone if somebody asked, or an answer came, since it was judged. Its row says in which
            mode it was recorded, whatever mode this process is in.
            """
            if judged[payment.uuid] != (payment.state, payment.attempt):
                return None
            return rules.again(payment, literal=payment.uuid in literal)

        with self.sides[MAIN].acting() as db:
            literal = {each.uuid for each in case.payments(db, list(judged)) if each.literal}
            moved = rules.saga.engine.act(db, list(judged), rule)
            if moved:
                write_repair(db, how, list(judged), act, moved)
        return moved

    def _give_back(self, cases: Sequence[Case], how: Repair, act: Act) -> int:
        """Cancel with an attempt that nobody has made: also if the last was rejected, it is a message of its own."""
        rules = rules_of(self.sides.settings)
        judged = {each.uuid: each.attempt for each in cases}
        with self.sides[MAIN].acting() as db:
            payments = [Payment(*row) for row in rules.saga.engine.store.lock(db, list(judged))]
            back = case.asked_back(db, list(judged))
            made = {uuid: back[uuid].attempt if uuid in back else 1 for uuid in judged}
            meant = [each for each in payments if each.state == case.FAILED and made[each.uuid] == judged[each.uuid]]
            if meant:
                append_many(db, [rules.given_back(each, judged[each.uuid] + 1) for each in meant])
                write_repair(db, how, [each.uuid for each in meant], act, len(meant))
        return len(meant)

    def settle(self, uuid: UUID, act: Act, *, yes: bool) -> bool:
        """Write down that a person gave back the amount of a stuck payment, and make it FAILED. If it has FAILED
        already, because the wallet refuses to give the amount back, nothing else changes.
        """
        rules = rules_of(self.sides.settings)
        found = next(iter(self.sides[MAIN].ask(case.payments, [uuid])), None)
        if found is None:
            raise FerrymanError(f"there is no payment {uuid}", remedy="correct it")
        failed = found.state == case.FAILED and any(
            each.cause == Cause.NEEDS_PERSON for each in chain.from_iterable(self.cases(older_seconds=0, ids=[uuid]))
        )
        if found.state != case.STUCK and not failed:
            raise FerrymanError(
                f"{uuid} is {found.state}: only what is STUCK is settled by hand",
                remedy=f"`ferryman reconcile payments --id {uuid}` says what it waits for",
            )
        if not yes:
            return False
        with self.sides[MAIN].acting() as db:
            if not (failed or rules.saga.engine.act(db, [uuid], rules.settled)):
                return False
            write_down(db, "reconcile", act, said={"settle": str(uuid)}, entries=1)
        return True


def gather(sides: Sides, requests: Sequence[PaymentRow]) -> list[PaymentFacts]:
    """Read what is known of each: the ledger, then its last command on its way, then its result on the way back. One
    that has FAILED is left out unless its amount stays taken; it waits for an answer since that was last asked back.
    """
    failed = [each.uuid for each in requests if each.state == case.FAILED]
    settled, back = sides[MAIN].ask(case.settled, failed), sides[MAIN].ask(case.asked_back, failed)
    asked = [each.asked_back(back.get(each.uuid)) if each.state == case.FAILED else each for each in requests]
    found = [
        replace(each, back=back.get(each.request.uuid)) for each in read(sides, asked, _commands)
        if each.request.state != case.FAILED or (each.kept > 0 and each.request.uuid not in settled)
    ]  # fmt: skip
    ids = [each.request.uuid for each in found]
    results = {command: result_of(command) for each in found for command in each.commands}
    rejected = {each.id: each for each in sides[case.WALLET].ask(messages.rejected, case.WALLET, results)}
    with sides[MAIN].looking() as db:
        unread = {each.id: each for each in messages.rejected(db, case.NAME, results.values())}
        strays = {each.message_id: each.why for each in messages.strays_of(db, "payment", ids)}
        literal = case.literal(db, [each.request.uuid for each in found if each.request.literal], sides.settings)
    commanded = unpublished(sides, [each.request for each in found if each.commands and each.outcome is None])
    commanded |= {uuid: each for uuid, each in literal.items() if each.status != "PUBLISHED"}
    decided = [each for each in found if each.outcome is not None]
    reported = journal.unpublished(
        sides[case.WALLET], {(case.READS[case.NAME], str(each.request.uuid)) for each in decided},
        [results[command] for each in decided for command in each.commands],
    )  # fmt: skip

    def complete(each: PaymentFacts) -> PaymentFacts:
        mine, answers = each.commands, [results[command] for command in each.commands]
        return replace(
            each, command=commanded.get(mine[0]) if mine else None,
            result=next((reported[one] for one in answers if one in reported), None),
            rejected=tuple(rejected[one] for one in mine if one in rejected),
            unread=tuple(unread[one] for one in answers if one in unread and unread[one].status != "REQUEUED"),
            strays=tuple(strays[one] for one in answers if one in strays),
        )  # fmt: skip

    return [complete(each) for each in found]


def _commands(request: PaymentRow, booked: Sequence[LedgerRow]) -> Iterator[UUID]:
    """Name what was asked last, the newest first."""
    if request.state == case.STUCK or (request.state == case.FAILED and sum(each.amount for each in booked) >= 0):
        return
    for attempt in range(request.attempt, max(0, request.attempt - _ATTEMPTS_LOOKED_AT), -1):
        yield case.command_of(request, attempt)
