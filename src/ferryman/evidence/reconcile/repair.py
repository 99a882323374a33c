"""Mends what is safe to mend: asks again through the machine, replays what failed, and writes down who had it done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ferryman.evidence.reconcile import store
from ferryman.evidence.reconcile.model import ORCHESTRATOR, Case, Repair
from ferryman.evidence.reconcile.policy import STUCK
from ferryman.evidence.reconcile.walk import House
from ferryman.relay.operator import replay
from ferryman.relay.operator.selection import FAILED, Selection
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
    for where in {each.where for each in cases if each.repair is Repair.REPLAY}:
        meant = [each for each in cases if each.repair is Repair.REPLAY and each.where == where]
        done.add(Repair.REPLAY, _replay(house, meant, where, act), len(meant))


def settle(house: House, uuid: UUID, act: Act, *, yes: bool) -> bool:
    """A person says that the amount of a stuck payment was given back by hand: it is FAILED then, as the machine has
    it. Whether it was done.
    """
    rules = rules_of(house.settings)
    with house.orchestrator.acting() as db:
        standing = store.states(db, [uuid])
        if uuid not in standing:
            raise FerrymanError(f"there is no payment {uuid}", remedy="correct it")
        if standing[uuid] != STUCK:
            raise FerrymanError(
                f"{uuid} is {standing[uuid]}: only what is STUCK is settled by hand",
                remedy=f"`ferryman reconcile payments --id {uuid}` says what it waits for",
            )
        if not yes or not sagas(rules).act(db, [uuid], rules.settled):
            return False
        audit(db, "reconcile", act, said={"settle": str(uuid)}, entries=1)
    return True


def _ask_again(house: House, cases: Sequence[Case], how: Repair, act: Act) -> int:
    rules = rules_of(house.settings)
    judged = {each.uuid: (each.state, each.attempt) for each in cases}

    def rule(payment: Payment) -> Move | None:
        """Not where somebody else has asked, or an answer came, since it was judged."""
        return rules.again(payment) if judged[payment.uuid] == (payment.state, payment.attempt) else None

    with house.orchestrator.acting() as db:
        moved = sagas(rules).act(db, list(judged), rule)
        if moved:
            said = {"repair": str(how), "payments": [str(each) for each in judged]}
            audit(db, "reconcile", act, said=said, entries=moved)
    return moved


def _replay(house: House, cases: Sequence[Case], where: str, act: Act) -> int:
    """The relay publishes them once more; a replay that is stopped goes on as any other."""
    desk = house.orchestrator if where == ORCHESTRATOR else house.wallet
    positions = tuple(sorted({each.position for each in cases if each.position is not None}))
    with desk.acting() as db:
        said = {"repair": str(Repair.REPLAY), "payments": [str(each.uuid) for each in cases]}
        audit(db, "reconcile", act, said=said, entries=len(positions))
    selection = Selection(positions=positions, statuses=(FAILED,))
    started = replay.start(desk, selection, act, rate=None, expected=len(positions))
    replay.run(desk, started, lambda _: None)
    return started.entries
