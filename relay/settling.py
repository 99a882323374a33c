"""Writes down what became of entries: cursors, and an exception for each that was not simply delivered."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ferryman.relay.delivery import Delivery
from ferryman.relay.model import Due, Entry, Walk
from ferryman.relay.policy import Retries, Retry, TopicUnavailable, after
from ferryman.relay.store import exceptions, lanes
from ferryman.relay.store.lanes import Connection


@dataclass(frozen=True, slots=True)
class Settled:
    """What cursors moved past, or was tried again; and what of it is FAILED now."""

    entries: Sequence[Entry]
    dead: Sequence[Entry] = ()


def settle_walks(
    connection: Connection, under_way: Sequence[Walk], delivery: Delivery, retries: Retries, most: int
) -> Settled:
    """Cursors move past all that has an outcome."""
    moved = [walk for walk in under_way if walk.moved]
    entries = [entry for walk in moved for step in walk.steps for entry in step.entries]
    dead: list[Entry] = []
    if delivery.outcomes:
        failing = [Due(Entry(*entry), 0, None) for entry in entries if entry[0] in delivery.outcomes]
        dead = _record(connection, failing, delivery, retries)
        _release(connection, dead, most)
    if cursors := [cursor for walk in moved for cursor in walk.new_cursors()]:
        lanes.settle(connection, cursors)
    return Settled(entries, dead)


def settle_exceptions(
    connection: Connection, tried: Sequence[Due], delivery: Delivery, retries: Retries, most: int
) -> Settled:
    """What is out has no exception any more; who waited behind it comes next."""
    out = [each.entry for each in tried if each.entry.position not in delivery.outcomes]
    failing = [each for each in tried if each.entry.position in delivery.outcomes]
    exceptions.published(connection, out)
    dead = _record(connection, failing, delivery, retries)
    _release(connection, [*out, *dead], most)
    return Settled([each.entry for each in tried], dead)


def _record(connection: Connection, failing: Sequence[Due], delivery: Delivery, retries: Retries) -> list[Entry]:
    """Returns those that are FAILED now: their keys need not wait for them any longer."""
    outcomes = delivery.outcomes
    standings = {
        each.entry: standing
        for each in failing
        if (standing := after(outcomes[each.entry.position], each.attempts, retries, dice=random.random()))
    }
    exceptions.record(connection, standings)
    topics = {
        (entry.lane, entry.topic): outcome.error
        for entry in standings
        if isinstance(outcome := outcomes[entry.position], TopicUnavailable)
    }
    exceptions.park_topics(connection, topics)
    heads = [entry for entry in standings if isinstance(outcomes[entry.position], Retry)]
    exceptions.park_keys(connection, [entry for entry in heads if entry.topic not in delivery.unordered])
    return [entry for entry, standing in standings.items() if standing.status == "FAILED"]


def _release(connection: Connection, over: Sequence[Entry], most: int) -> None:
    exceptions.release_keys(connection, {(entry.lane, entry.topic, entry.key) for entry in over}, most)
