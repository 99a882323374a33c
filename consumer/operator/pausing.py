"""Stops a consumer, and lets it go on. Its processes stay in their group, and what comes waits in Kafka."""

from ferryman.consumer.store import acts
from ferryman.runtime.desk import Act, Desk, audit


def pause(desk: Desk, consumer: str, act: Act) -> bool:
    """Whether it was not paused before; who paused it first stands there."""
    with desk.acting() as connection:
        changed = acts.pause(connection, consumer, act.who, act.reason)
        if changed:
            audit(connection, "pause", act, said={"consumer": consumer})
    return changed


def resume(desk: Desk, consumer: str, act: Act) -> bool:
    """Whether it was paused."""
    with desk.acting() as connection:
        changed = acts.resume(connection, consumer)
        if changed:
            audit(connection, "resume", act, said={"consumer": consumer})
    return changed
