"""Whether the orchestrator's journal has the commands of payments that the wallet knows nothing of.

It has no index on ids: positions follow time, so a command is looked for around the moment at which it must have been
appended, and wider only while it is missing.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from ferryman.evidence.audit import store, store_again
from ferryman.evidence.audit.model import EXPIRED, FOUND, MISSING, Request
from ferryman.evidence.databases import Connection
from ferryman.evidence.messages import ASKED, DEDUCT
from ferryman.evidence.trace.journal import merged
from ferryman.relay.operator import listing
from ferryman.relay.operator.desk import Desk
from ferryman.runtime.settings import Settings
from ferryman.services.payments.rules import message_id

_SLACKS = tuple(timedelta(seconds=seconds) for seconds in (2.0, 60.0, 900.0))
_MOST_SPANS = 200
_STRIDE = 100_000


def commanded(connection: Connection, settings: Settings, requests: Sequence[Request]) -> dict[UUID, str]:
    """Of each, whether a command of it is there; where the journal may have forgotten it, nobody can tell."""
    if not requests:
        return {}
    desk = Desk(connection, settings.database)
    missing = {each.uuid: each for each in requests}
    for slack in _SLACKS:
        wanted = {identity: uuid for uuid, each in missing.items() for identity in _ids(each)}
        for since, to in _spans(list(missing.values()), slack):
            for identity in _between(desk, list(wanted), since, to):
                missing.pop(wanted[identity], None)
        if not missing:
            break
    kept_since = _kept_since(desk, settings)
    lost = {uuid: MISSING if each.created_at >= kept_since else EXPIRED for uuid, each in missing.items()}
    return {each.uuid: FOUND for each in requests} | lost


def _ids(request: Request) -> list[UUID]:
    """What was asked first, and what was asked last."""
    last = ASKED.get(request.state, DEDUCT)
    return [message_id(request.uuid, DEDUCT), message_id(request.uuid, last, request.attempt)]


def _spans(requests: Sequence[Request], slack: timedelta) -> list[tuple[datetime, datetime]]:
    """Few enough to be gone through, however far apart the moments are."""
    moments = [at for each in requests for at in (each.created_at, each.changed_at)]
    while len(spans := merged((at - slack, at + slack) for at in moments)) > _MOST_SPANS:
        slack *= 4
    return spans


def _between(desk: Desk, ids: Sequence[UUID], since: datetime, to: datetime) -> set[UUID]:
    after, end = listing.at_time(desk, since), listing.at_time(desk, to)
    found: set[UUID] = set()
    while after < end:
        upto = min(after + _STRIDE, end)
        with desk.reading() as db:
            found |= store_again.appended(db, ids, after, upto)
        after = upto
    return found


def _kept_since(desk: Desk, settings: Settings) -> datetime:
    """Nothing that was appended since then is forgotten."""
    with desk.acting() as db:
        now, truncated = store.now(db), store_again.truncated(db)
    if not truncated:
        return datetime.min.replace(tzinfo=UTC)
    return now - timedelta(seconds=settings.relay.ring.retention_seconds)
