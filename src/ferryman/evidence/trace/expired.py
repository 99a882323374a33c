"""What of a payment is not told because nobody keeps it for so long: its money and its state are, for ever. Pure."""

from ferryman.evidence.messages import DEDUCT, KINDS, RESULTS
from ferryman.evidence.trace.model import Known
from ferryman.runtime.times import span
from ferryman.services.payments.rules import message_id


def expired(known: Known) -> str | None:
    """In words. What is old and there all the same is told, and nothing said of it: it is deleted in its own time."""
    kept: list[str] = []
    if _receipts(known):
        kept.append(f"receipts are kept for {span(known.times.receipts_seconds)}")
    if _entries(known):
        kept.append(f"an outbox keeps what it published for {span(known.times.outbox_seconds)}")
    return f"What is told is what is left: {', and '.join(kept)}" if kept else None


def _receipts(known: Known) -> bool:
    """Whether one is not there that must have been written so long ago."""
    if known.wallet is not None:
        there = {KINDS.get(each.type) for each in known.wallet.receipts}
        if any(each.kind not in there and known.forgets(each.decided_at) for each in known.ledger):
            return True
    payment, ours = known.payment, known.orchestrator
    if payment is None or ours is None or known.literal is not None or payment.status == "PENDING":
        return False
    return not ours.receipts and known.forgets(payment.changed_at)


def _entries(known: Known) -> bool:
    """The same of the first command, and of what the wallet reported of it; those of the literal mode are kept."""
    if known.literal is not None:
        return False
    payment, ours, theirs = known.payment, known.orchestrator, known.wallet
    seconds = known.times.outbox_seconds
    if payment and ours and ours.whole and ours.entry(message_id(known.id, DEDUCT)) is None:
        return known.age(payment.created_at) > seconds
    if not known.ledger or theirs is None or not theirs.whole or any(each.type in RESULTS for each in theirs.entries):
        return False
    return known.age(known.ledger[0].decided_at) > seconds
