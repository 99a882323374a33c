"""Goes through what is pending, page by page, and gathers what both databases know of each: short reads, by id."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from uuid import UUID

from ferryman.consumer.store import standing as consuming
from ferryman.evidence import store as shared
from ferryman.evidence.addressing import BY_URL, Address
from ferryman.evidence.databases import Connection, Databases
from ferryman.evidence.messages import DEDUCT, KINDS, literal_limit, result_of
from ferryman.evidence.reconcile import store
from ferryman.evidence.reconcile.cases import FAILED, STUCK, asked
from ferryman.evidence.reconcile.model import (
    ORCHESTRATOR,
    WALLET,
    Case,
    Entry,
    Evidence,
    Lag,
    Operation,
    Pending,
    Reader,
    Standing,
)
from ferryman.evidence.reconcile.outbox import topic_of, unpublished
from ferryman.evidence.reconcile.policy import judge
from ferryman.relay.operator.desk import Desk
from ferryman.relay.store import standing
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Settings
from ferryman.runtime.times import moment
from ferryman.services.payments.rules import message_id

PAGE = 1_000
_ATTEMPTS_LOOKED_AT = 3
_BEFORE, _AFTER = timedelta(minutes=1), timedelta(minutes=15)
"""What clocks and long transactions may put between a payment's step and the entry that was appended with it."""

_RESULT = "wallet.succeeded"


@dataclass(frozen=True)
class House:
    """Both databases, as a person looks at them."""

    orchestrator: Desk
    wallet: Desk
    settings: Settings
    lags: Callable[[], dict[str, Lag]] = field(default=dict)
    """What Kafka says of each reader, where a cluster is named."""
    wallets: Address = BY_URL
    """How what a person runs finds the wallet's database."""

    @classmethod
    def of(
        cls, databases: Databases, settings: Settings, lags: Callable[[], dict[str, Lag]] = dict,
        wallets: Address = BY_URL,
    ) -> "House":  # fmt: skip
        for each in (databases.orchestrator, databases.wallet):
            each.prepare_threshold = None  # ids are looked for in long arrays: a plan that is kept would not hash them
        limits = settings.database
        return cls(Desk(databases.orchestrator, limits), Desk(databases.wallet, limits), settings, lags, wallets)

    def standing(self) -> Standing:
        relays, pauses, readers, lags = {}, {}, {}, self.lags()
        for name, desk, consumer in ((ORCHESTRATOR, self.orchestrator, "payments"), (WALLET, self.wallet, "wallet")):
            with desk.acting() as db:
                relays[name], pauses[name] = standing.relays(db), store.paused(db)
                readers[consumer] = _reader(db, consumer, lags.get(consumer))
        given = self.settings
        return Standing(
            given.payments.answer_seconds, given.consumer.receipts_retention_seconds, relays, pauses, readers,
            self.wallets,
        )  # fmt: skip


def _reader(db: Connection, name: str, lag: Lag | None) -> Reader:
    paused = next((row for row in consuming.paused(db) if row["consumer"] == name), None)
    said = None if paused is None else f"{paused['who']} since {moment(paused['since'])} ({paused['reason']})"
    return Reader(consuming.processes(db, [name])[name], said, lag)


def cases(house: House, *, older_seconds: float, ids: Sequence[UUID] = ()) -> Iterator[list[Case]]:
    """All that is pending for so long, and what has FAILED and keeps what it took; or what is named of it. Judged, a
    page at a time, with nothing open between.
    """
    known = house.standing()
    pages = _named(house, ids) if ids else chain(_pages(house, older_seconds), _failed_pages(house, older_seconds))
    for requests in pages:
        yield [judge(each, known) for each in gather(house, requests)]


def _named(house: House, ids: Sequence[UUID]) -> Iterator[list[Pending]]:
    wanted = list(dict.fromkeys(ids))
    with house.orchestrator.acting() as db:
        known = store.states(db, wanted)
    if missing := [str(each) for each in wanted if each not in known]:
        raise FerrymanError(f"there is no payment {', '.join(missing)}", remedy="correct it; archived ones are gone")
    for first in range(0, len(wanted), PAGE):
        with house.orchestrator.acting() as db:
            found = store.named(db, wanted[first : first + PAGE])
        yield [each for each in found if each.state != FAILED] + _keeping(house, found)


def _pages(house: House, older_seconds: float) -> Iterator[list[Pending]]:
    after = store.FIRST
    with house.orchestrator.acting() as db:
        began = store.now(db)
    while True:
        with house.orchestrator.acting() as db:
            found = store.pending(db, after, began, older_seconds, PAGE)
        if found:
            yield found
        if len(found) < PAGE:
            return
        after = found[-1].mark, found[-1].uuid


def _failed_pages(house: House, older_seconds: float) -> Iterator[list[Pending]]:
    """Each once, however often it was told of."""
    after, named = store.FIRST, set[UUID]()
    with house.orchestrator.acting() as db:
        began = store.now(db)
    while True:
        with house.orchestrator.acting() as db:
            found = store.taken_late(db, after, began, older_seconds, PAGE)
        keeping = {each.uuid: each for each in _keeping(house, found) if each.uuid not in named}
        if keeping:
            named |= keeping.keys()
            yield list(keeping.values())
        if len(found) < PAGE:
            return
        after = found[-1].mark, found[-1].uuid


def _keeping(house: House, found: Sequence[Pending]) -> list[Pending]:
    """Those that have FAILED and whose amount stays taken, unless a person has given it back; as they stand since they
    were last asked for it.
    """
    ids = [each.uuid for each in found if each.state == FAILED]
    if not ids:
        return []
    with house.wallet.acting() as db:
        net = Counter[UUID]()
        for each in store.ledger(db, ids):
            net[each.request_id] += each.amount
    with house.orchestrator.acting() as db:
        settled, back = shared.settled(db, ids), shared.asked_back(db, ids)
    return [
        each._replace(attempt=back[each.uuid].attempt, changed_at=max(each.changed_at, back[each.uuid].at))
        if each.uuid in back else each._replace(attempt=1)
        for each in found if net[each.uuid] < 0 and each.uuid not in settled
    ]  # fmt: skip


def gather(house: House, requests: Sequence[Pending]) -> list[Evidence]:
    """What is known of each: the ledger, then its last command on its way, then its result on the way back."""
    if not requests:
        return []
    ids = [each.uuid for each in requests]
    with house.orchestrator.acting() as db:
        literal = store.literal(db, ids, literal_limit(house.settings))
    commands = {each.uuid: _commands(each, literal=each.uuid in literal) for each in requests}
    every = list(chain.from_iterable(commands.values()))
    results = {command: result_of(command) for command in every}
    with house.wallet.acting() as db:
        rows = store.ledger(db, ids)
        decided, booked = _decided(requests, rows), defaultdict[UUID, list[Operation]](list)
        for each in rows:
            booked[each.request_id].append(each)
        receipts, rejected = store.receipts(db, "wallet", every), store.rejected(db, "wallet", every)
    with house.orchestrator.acting() as db:
        applied = store.receipts(db, "payments", results.values())
        unread = store.rejected(db, "payments", results.values())
        strays = store.strays(db, ids)
        back = shared.asked_back(db, [each.uuid for each in requests if each.state == FAILED])
    waiting = _waiting_commands(house, requests, {each.uuid: commands[each.uuid][0] for each in requests
                                                  if commands[each.uuid] and each.uuid not in decided})  # fmt: skip
    waiting |= {uuid: entry for uuid, entry in literal.items() if entry is not None}
    lost = _waiting_results(house, {uuid: decided[uuid] for uuid in ids if uuid in decided}, commands, results)

    def evidence(request: Pending) -> Evidence:
        mine = commands[request.uuid]
        answers = [results[each] for each in mine]
        return Evidence(
            request, decided.get(request.uuid),
            waiting.get(mine[0]) if mine else None,
            tuple(receipts[each] for each in mine if each in receipts),
            tuple(rejected[each] for each in mine if each in rejected),
            next((lost[each] for each in answers if each in lost), None),
            tuple(applied[each] for each in answers if each in applied),
            tuple(unread[each] for each in answers if each in unread and unread[each].status != "REQUEUED"),
            tuple(strays[each] for each in answers if each in strays), request.uuid in literal,
            tuple(booked[request.uuid]),
            bool(mine) and mine[0] not in receipts, request.uuid in back,
        )  # fmt: skip

    return [evidence(each) for each in requests]


def _commands(request: Pending, *, literal: bool) -> list[UUID]:
    """The ids of what was asked last, the newest first; in the literal mode the first has the payment's own."""
    if request.state == STUCK:
        return []
    kind = asked(request.state)
    oldest = max(1, request.attempt - _ATTEMPTS_LOOKED_AT + 1)
    return [
        request.uuid if literal and (kind, attempt) == (DEDUCT, 1) else message_id(request.uuid, kind, attempt)
        for attempt in range(request.attempt, oldest - 1, -1)
    ]


def _decided(requests: Sequence[Pending], operations: Iterable[Operation]) -> dict[UUID, Operation]:
    """Of each payment, the operation that its state waits for; of one that is stuck or has FAILED, what was refused."""
    wanted = {each.uuid: each.state for each in requests}
    found = {}
    for each in operations:
        state = wanted[each.request_id]
        over = state in (STUCK, FAILED)
        if (each.kind != "DEDUCT" and each.reason) if over else (KINDS.get(asked(state)) == each.kind):
            found[each.request_id] = each
    return found


def _waiting_commands(
    house: House, requests: Sequence[Pending], ids: dict[UUID, UUID]
) -> dict[UUID, Entry]:  # fmt: skip
    """Those commands that are not published, by their ids."""
    if not ids:
        return {}
    meant = [each for each in requests if each.uuid in ids]
    keys = {
        (topic_of(kind), str(each.wallet_id if kind in KINDS else each.uuid))
        for each in meant
        for kind in [asked(each.state)]
    }
    times = [each.changed_at for each in meant]
    return unpublished(house.orchestrator, keys, list(ids.values()), min(times) - _BEFORE, max(times) + _AFTER)


def _waiting_results(
    house: House, decided: dict[UUID, Operation], commands: dict[UUID, list[UUID]], results: dict[UUID, UUID]
) -> dict[UUID, Entry]:
    """Those results that are not published, by their ids; they came after what they answer was decided."""
    if not decided:
        return {}
    keys = {(topic_of(_RESULT), str(uuid)) for uuid in decided}
    ids = [results[command] for uuid in decided for command in commands[uuid]]
    first = min(each.decided_at for each in decided.values()) - _BEFORE
    return unpublished(house.wallet, keys, ids, first, None)
