"""Gives rejected messages up: their receipts stay REJECTED, so that they have no effect if they come again."""

from collections import Counter

from ferryman.consumer.operator.requeue import CHUNK, DISCARDED, REJECTED
from ferryman.consumer.operator.selection import Selection
from ferryman.consumer.store import acts
from ferryman.runtime.desk import Act, Desk, audit


def plan(desk: Desk, selection: Selection) -> Counter[str]:
    """How many of each code it would give up."""
    found, after = Counter[str](), acts.FIRST
    while True:
        with desk.acting() as connection:
            records = acts.waiting(connection, selection.parameters(), after, CHUNK)
        if not records:
            return found
        found.update(each.code for each in records)
        after = records[-1].place


def discard(desk: Desk, selection: Selection, act: Act) -> int:
    """How many were given up; in chunks, each with its audit."""
    total, after = 0, acts.FIRST
    while True:
        with desk.acting() as connection:
            records = acts.waiting(connection, selection.parameters(), after, CHUNK)
            if not records:
                return total
            done = acts.settle(
                connection, selection.consumer, [each.place for each in records], DISCARDED, who=act.who,
                reason=act.reason, was=(REJECTED,),
            )  # fmt: skip
            if done:
                audit(connection, "discard", act, said=selection.as_json(), entries=done)
        total += done
        after = records[-1].place
