"""Stops a consumer, and lets it go on. Its processes stay in their group, and what comes waits in Kafka."""

from ferryman.consumer.store import acts
from ferryman.runtime.desk import Act, Desk, change


def pause(desk: Desk, consumer: str, act: Act) -> bool:
    """Whether it was not paused before; who paused it first stands there."""
    said = {"consumer": consumer}
    return change(
        desk, "pause", act, lambda connection: acts.pause(connection, consumer, act.who, act.reason), said=said
    )


def resume(desk: Desk, consumer: str, act: Act) -> bool:
    """Whether it was paused."""
    return change(
        desk, "resume", act, lambda connection: acts.resume(connection, consumer), said={"consumer": consumer}
    )
