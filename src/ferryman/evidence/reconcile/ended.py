"""What nothing goes on with by itself: a payment that is STUCK, and one that has FAILED and keeps what it took. Pure.

What stays taken is what the ledger says, whatever the payment's state.
"""

from dataclasses import replace

from ferryman.evidence.reconcile.cases import case
from ferryman.evidence.reconcile.model import Case, Cause, Evidence, Repair


def stuck(known: Evidence) -> Case:
    """A person says how it ended; what to do before that, the ledger tells."""
    if not any(each.kind == "DEDUCT" for each in known.booked):
        said = "the wallet is said to refuse to give the amount back, and its ledger has no deduction: one may yet come"
        return case(known.request, Cause.NEEDS_PERSON, said, next=f"ferryman trace {known.request.uuid}", person=True)
    if known.kept <= 0:
        given = any(each.amount > 0 for each in known.booked)
        said = "the ledger has given it back" if given else "the ledger says that nothing was taken"
        return _by_hand(known, f"{said}, so there is nothing to give back: settle it", "nothing is taken for it")
    said = f"the wallet refuses to give the amount back{_why(known)}: give it back by hand, then say so"
    return _by_hand(known, said, "given back by hand: ...")


def not_given_back(known: Evidence, followed: Case) -> Case:
    """Its cancellation is followed as any command is, and asked for with another attempt where that was in vain."""
    said = "it FAILED, and the ledger says that the amount stays taken"
    if known.outcome is not None:
        said = f"{said}; the wallet refuses to give it back{_why(known)}: give it back by hand, then say so"
        return _by_hand(known, said, "given back by hand: ...")
    repair = Repair.GIVE_BACK if followed.repair is Repair.REPUBLISH else followed.repair
    evidence = f"{said}; its cancellation: {followed.evidence}"
    return replace(followed, cause=Cause.NOT_GIVEN_BACK, repair=repair, evidence=evidence)


def _by_hand(known: Evidence, said: str, reason: str) -> Case:
    command = f"ferryman reconcile payments --settle {known.request.uuid} --yes --reason '{reason}'"
    return case(known.request, Cause.NEEDS_PERSON, said, next=command, person=True)


def _why(known: Evidence) -> str:
    return f" ({known.outcome.reason})" if known.outcome and known.outcome.reason else ""
