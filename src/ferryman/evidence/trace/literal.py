"""What the literal mode's outbox says of a payment: a table of its own, whose rows nothing tries for ever."""

from uuid import UUID

from ferryman.evidence.messages import EXHAUSTED
from ferryman.evidence.trace import store
from ferryman.evidence.trace.model import Entry
from ferryman.evidence.trace.way import again
from ferryman.relay.store import standing


def entry(db: store.Connection, identity: UUID, limit: int) -> Entry | None:
    """As an entry of the journal would be told; None where the payment was recorded in the other mode."""
    row = store.literal(db, identity)
    if row is None:
        return None
    status, reason, following = row["status"], None, None
    if status == "PENDING":
        status, reason, following = _waits(identity, row["try_count"], limit, relays=standing.relays(db))
    return Entry(
        identity, None, row["type"], row["topic"], status, row["created_at"], row["try_count"], row["last_error"],
        row["at"], reason, following,
    )  # fmt: skip


def _waits(identity: UUID, tries: int, limit: int, *, relays: int) -> tuple[str, str, str | None]:
    """Its status, why it is not published, and what a person runs."""
    if tries >= limit:
        return EXHAUSTED, f"{EXHAUSTED} after {tries} attempts: nothing tries again", again(identity)
    status = "RETRYING" if tries else "PENDING"
    if not relays:
        return status, f"{status}: no relay is connected to that database", "ferryman run relay"
    return status, f"{status}: {tries} of {limit} attempts are made, and the relay tries it", None
