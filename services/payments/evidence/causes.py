"""Why payments are still pending, decided from values.

The ledger speaks first: only the result of what it has decided can be missing. Then what was asked last is followed on
its way: the outbox, the wallet's inbox.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from ferryman.evidence import span
from ferryman.evidence.journey import EXHAUSTED
from ferryman.evidence.reconcile import Case, Judge, Repair, SystemState, in_outbox
from ferryman.services.payments.evidence import case
from ferryman.services.payments.evidence.case import ORCHESTRATOR, LedgerRow
from ferryman.services.payments.evidence.facts import PaymentFacts

_FORGED = "FORGED"


class Cause(StrEnum):
    """Why a payment is still pending."""

    NEVER_PUBLISHED = "never_published"
    NOT_CONSUMED = "not_consumed"
    CONSUMER_FAILED = "consumer_failed"
    RESULT_LOST = "result_lost"
    WAITS_DOWNSTREAM = "waits_downstream"
    NEEDS_PERSON = "needs_person"
    EVIDENCE_EXPIRED = "evidence_expired"
    NOT_GIVEN_BACK = "not_given_back"
    """It is over, having FAILED, and what was taken for it stays taken."""


def judge(known: PaymentFacts, house: SystemState) -> Case:
    """Name the cause, the evidence, the repair and the command to run next."""
    decided = [known.outcome.decided_at] if known.outcome else []
    last = max([known.request.changed_at, *decided])
    return _PaymentJudge(known.request, last, house, case.NAME, ORCHESTRATOR, known).judge()


@dataclass(frozen=True, slots=True)
class _PaymentJudge(Judge):
    """One payment before its judge."""

    known: PaymentFacts

    def judge(self) -> Case:
        if self.known.request.state == case.STUCK:
            return self._stuck()
        if self.known.request.state == case.FAILED:
            return self._not_given_back()
        return self._result_lost(self.known.outcome) if self.known.outcome else self._followed()

    def _asking(self, cause: Cause, said: str, repair: Repair = Repair.REPUBLISH, *, person: bool = False) -> Case:
        by = case.WALLET if self.known.request.asked in case.KINDS else None
        run = f"ferryman run {'wallet-literal' if self.known.request.by_letter else case.WALLET}"
        return self.ask_again(cause, said, by, repair, run=run, person=person)

    # --- the way of the last command

    def _followed(self) -> Case:
        entry = self.known.command
        if entry is not None:
            said = f"its {self.known.request.asked} is {in_outbox(entry)}"
            if entry.status in (EXHAUSTED, "DISCARDED"):
                said += "; it is not tried again" if entry.status == EXHAUSTED else ": a person gave it up"
                return self._asking(Cause.NEVER_PUBLISHED, said)
            return self.unsent(Cause.NEVER_PUBLISHED, said, entry, ORCHESTRATOR)
        if why := self._consumer_failed():
            return self._asking(Cause.CONSUMER_FAILED, why)
        return self._not_answered()

    def _consumer_failed(self) -> str | None:
        """Say how the wallet failed at the last attempt: one before it may have failed while this one is on its way."""
        newest = self.known.receipts[0] if self.known.receipts and not self.known.asked_since else None
        if newest is None or newest.status not in ("REJECTED", "RECEIVED"):
            return None
        if newest.status == "RECEIVED":
            error = f": {newest.error}" if newest.error else ""
            return f"received {self.ago(newest.at)} at most once, and it never took effect{error}"
        record = next((each for each in self.known.rejected if each.id == newest.id), None)
        code, error = (record.code, record.error) if record else ("REJECTED", newest.error or "no error was recorded")
        given_up = ", and a person discarded it" if record and record.status == "DISCARDED" else ""
        return f"the wallet rejected it {self.ago(newest.at)}: {code}: {error}{given_up}"

    def _not_answered(self) -> Case:
        """Say that it was published and nobody knows of it."""
        request, kept, wallet = self.known.request, self.house.receipts_seconds, self.house.parties[case.WALLET]
        said = f"asked {self.ago(request.changed_at)}"
        if request.due_at is None and not self.known.request.by_letter and request.state != case.FAILED:
            said = f"all attempts used up: {said}, for the {request.attempt}. time, and never answered"
            return self._asking(Cause.NEEDS_PERSON, f"{said}{wallet.read}", person=True)
        if request.asked not in case.KINDS:
            return self._asking(Cause.WAITS_DOWNSTREAM, f"{said}; the fulfilment has not answered{self._overdue()}")
        if 0 < kept < self.seconds_since(request.changed_at):
            said = (
                f"{said}; receipts are kept for {span(kept)}, so whether it was received cannot be told: the ledger "
                "says that it took no effect"
            )
            return self._asking(Cause.EVIDENCE_EXPIRED, said)
        said = f"published, {said}; the wallet has no receipt of it{wallet.read}{self._overdue()}"
        return self._asking(Cause.NOT_CONSUMED, said)

    def _overdue(self) -> str:
        """Say that nobody looked at it in time: the saga's timeouts do by themselves, and the literal mode has none."""
        due_at = self.known.request.due_at
        late = self.seconds_since(due_at) if due_at and not self.known.request.by_letter else 0
        return f"; it was due {span(late)} ago: does `ferryman run payments` run?" if late > 60 else ""

    # --- the way of its result

    def _result_lost(self, outcome: LedgerRow) -> Case:
        known, cause = self.known, Cause.RESULT_LOST
        decided = f"refused ({outcome.reason})" if outcome.reason else "done"
        said = f"the ledger has it: {outcome.kind} {decided}, {self.ago(outcome.decided_at)}"
        if _FORGED in (*known.strays, *(each.reason for each in known.applied)):
            said += "; the orchestrator took its result for FORGED: the ledger has another wallet, amount or currency"
            return self.case(Cause.NEEDS_PERSON, said, self.trace, person=True)
        if known.result is not None and known.result.status != "DISCARDED":
            return self.unsent(cause, f"{said}; its result is {in_outbox(known.result)}", known.result, case.WALLET)
        why = self._why_lost()
        if why is None:
            said += f"; its result was published, and never came{self.house.parties[ORCHESTRATOR].read}"
            if held := self.held_up(ORCHESTRATOR, cause, said):
                return held
        return self._asking(cause, said + (why or ""), Repair.REREPORT)

    def _why_lost(self) -> str | None:
        """Say why the result will not come. Return None if it may still be on its way."""
        known = self.known
        if known.result is not None:
            return "; its result was discarded at the wallet's outbox"
        if known.unread:
            record = known.unread[0]
            return f"; the orchestrator rejected its result ({record.id}): {record.code}: {record.error}"
        if known.applied:
            result = known.applied[0]
            return f"; its result came and was applied to nothing ({result.reason or result.status})"
        if self.known.request.by_letter:
            return "; the wallet told it by HTTP, once, and it was not heard"
        literal = "; `ferryman run wallet` tells it, and the literal wallet tells nobody of that"
        return literal if known.request.literal else None

    # --- what a person decides, and what is over

    def _stuck(self) -> Case:
        """Ask a person how it ended; the ledger tells what to do before that."""
        known = self.known
        if not any(each.kind == "DEDUCT" for each in known.ledger):
            said = "the wallet is said to refuse to give the amount back, and its ledger has no deduction"
            return self.case(Cause.NEEDS_PERSON, f"{said}: one may yet come", self.trace, person=True)
        if known.kept <= 0:
            given = any(each.amount > 0 for each in known.ledger)
            said = "the ledger has given it back" if given else "the ledger says that nothing was taken"
            return self._settle(f"{said}, so there is nothing to give back: settle it", "nothing is taken for it")
        return self._give_back_by_hand("")

    def _not_given_back(self) -> Case:
        """Follow its cancellation as any command, and ask for another attempt if that was in vain."""
        known, said = self.known, "it FAILED, and the ledger says that the amount stays taken"
        if known.outcome is not None:
            return self._give_back_by_hand(f"{said}; ")
        never = "no result ever told the orchestrator, and none was asked for"
        followed = self._followed() if known.back else self._asking(Cause.NOT_GIVEN_BACK, never)
        repair = Repair.GIVE_BACK if followed.repair is Repair.REPUBLISH else followed.repair
        evidence = f"{said}; its cancellation: {followed.evidence}"
        return replace(followed, cause=Cause.NOT_GIVEN_BACK, repair=repair, evidence=evidence)

    def _give_back_by_hand(self, said: str) -> Case:
        refusal = self.known.outcome
        why = f" ({refusal.reason})" if refusal and refusal.reason else ""
        said = f"{said}the wallet refuses to give the amount back{why}: give it back by hand, then say so"
        return self._settle(said, "given back by hand: ...")

    def _settle(self, said: str, reason: str) -> Case:
        command = f"ferryman reconcile payments --settle {self.subject.uuid} --yes --reason '{reason}'"
        return self.case(Cause.NEEDS_PERSON, said, command, person=True)
