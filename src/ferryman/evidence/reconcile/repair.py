"""Mends what is safe to mend: asks again through the machine, replays what failed, and writes down who had it done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from uuid import UUID

from ferryman.evidence import store as shared
from ferryman.evidence.messages import literal_limit
from ferryman.evidence.reconcile import store, walk
from ferryman.evidence.reconcile.cases import FAILED, STUCK
from ferryman.evidence.reconcile.model import ORCHESTRATOR, Case, Cause, Repair
from ferryman.evidence.reconcile.walk import House
from ferryman.outbox import append_many
from ferryman.relay.operator import replay, selection
from ferryman.runtime.desk import Act, audit
from ferryman.runtime.errors import FerrymanError
from ferryman.saga.model import Move
from ferryman.services.payments.rules import Payment
from ferryman.services.payments.service import rules_of, sagas

CHUNK = 500
"""Payments of one transaction."""


@dataclass(slots=True)
class Repaired:
    """How many were mended, by how; `moved` went on by themselves meanwhile."""

    by_repair: dict[str, int] = field(default_factory=dict)
    moved: int = 0

    def add(self, repair: Repair, done: int, asked: int) -> None:
        self.by_repair[repair] = self.by_repair.get(repair, 0) + done
        self.moved += asked - done


def repair(house: House, cases: Sequence[Case], act: Act, done: Repaired) -> None:
    """Each as it was judged, and only where it still stands as it stood then."""
    for how in (Repair.REPUBLISH, Repair.REREPORT):
        meant = [each for each in cases if each.repair is how]
        for first in range(0, len(meant), CHUNK):
            chunk = meant[first : first + CHUNK]
            done.add(how, _ask_again(house, chunk, how, act), len(chunk))
    meant = [each for each in cases if each.repair is Repair.GIVE_BACK]
    for first in range(0, len(meant), CHUNK):
        chunk = meant[first : first + CHUNK]
        done.add(Repair.GIVE_BACK, _give_back(house, chunk, act), len(chunk))
    for where in {each.where for each in cases if each.repair is Repair.REPLAY}:
        meant = [each for each in cases if each.repair is Repair.REPLAY and each.where == where]
        done.add(Repair.REPLAY, _replay(house, meant, where, act), len(meant))


def settle(house: House, uuid: UUID, act: Act, *, yes: bool) -> bool:
    """A person says that the amount of a stuck payment was given back by hand: it is FAILED then, as the machine has
    it. Of one that has FAILED already, and that the wallet refuses to give back, it is only written down. Whether it
    was done.
    """
    rules = rules_of(house.settings)
    failed = _waits_for_a_person(house, uuid)
    with house.orchestrator.acting() as db:
        standing = store.states(db, [uuid])
        if uuid not in standing:
            raise FerrymanError(f"there is no payment {uuid}", remedy="correct it")
        if standing[uuid] != STUCK and not failed:
            raise FerrymanError(
                f"{uuid} is {standing[uuid]}: only what is STUCK is settled by hand",
                remedy=f"`ferryman reconcile payments --id {uuid}` says what it waits for",
            )
        if not yes or not (failed or sagas(rules).act(db, [uuid], rules.settled)):
            return False
        audit(db, "reconcile", act, said={"settle": str(uuid)}, entries=1)
    return True


def _ask_again(house: House, cases: Sequence[Case], how: Repair, act: Act) -> int:
    rules = rules_of(house.settings)
    judged = {each.uuid: (each.state, each.attempt) for each in cases}

    def rule(payment: Payment) -> Move | None:
        """Not where somebody else has asked, or an answer came, since it was judged. Its row says in which mode it was
        recorded, whatever mode this process is in.
        """
        if judged[payment.uuid] != (payment.state, payment.attempt):
            return None
        return rules.again(payment, literal=payment.uuid in literal)

    with house.orchestrator.acting() as db:
        literal = store.literal(db, list(judged), literal_limit(house.settings))
        moved = sagas(rules).act(db, list(judged), rule)
        if moved:
            said = {"repair": str(how), "payments": [str(each) for each in judged]}
            audit(db, "reconcile", act, said=said, entries=moved)
    return moved


def _waits_for_a_person(house: House, uuid: UUID) -> bool:
    """Whether it has FAILED and nothing but a person gives back what it took."""
    with house.orchestrator.acting() as db:
        if store.states(db, [uuid]).get(uuid) != FAILED:
            return False
    found = chain.from_iterable(walk.cases(house, older_seconds=0, ids=[uuid]))
    return any(each.cause is Cause.NEEDS_PERSON for each in found)


def _give_back(house: House, cases: Sequence[Case], act: Act) -> int:
    """With an attempt that nobody has made: also where the last was rejected, it is a message of its own."""
    rules = rules_of(house.settings)
    judged = {each.uuid: each.attempt for each in cases}
    with house.orchestrator.acting() as db:
        payments = [Payment(*row) for row in sagas(rules).store.lock(db, list(judged))]
        back = shared.asked_back(db, list(judged))
        made = {uuid: back[uuid].attempt if uuid in back else 1 for uuid in judged}
        meant = [each for each in payments if each.state == FAILED and made[each.uuid] == judged[each.uuid]]
        if meant:
            append_many(db, [rules.given_back(each, judged[each.uuid] + 1) for each in meant])
            said = {"repair": str(Repair.GIVE_BACK), "payments": [str(each.uuid) for each in meant]}
            audit(db, "reconcile", act, said=said, entries=len(meant))
    return len(meant)


def _replay(house: House, cases: Sequence[Case], where: str, act: Act) -> int:
    """The relay publishes them once more; a replay that is stopped goes on as any other."""
    desk = house.orchestrator if where == ORCHESTRATOR else house.wallet
    positions = tuple(sorted({each.position for each in cases if each.position is not None}))
    with desk.acting() as db:
        said = {"repair": str(Repair.REPLAY), "payments": [str(each.uuid) for each in cases]}
        audit(db, "reconcile", act, said=said, entries=len(positions))
    meant = selection.Selection(positions=positions, statuses=(selection.FAILED,))
    started = replay.start(desk, meant, act, rate=None, expected=len(positions))
    replay.run(desk, started, lambda _: None)
    return started.entries
