"""Stops publishing a topic, or the whole outbox, and lets it go on. Writers append as before."""

import re

from ferryman.relay.operator.desk import Desk
from ferryman.relay.store import acts
from ferryman.runtime.desk import Act, change
from ferryman.runtime.errors import FerrymanError

EVERYTHING = ""
"""What the table calls the whole outbox."""


def check(topic: str) -> None:
    """Refuses what cannot be a topic's name: it would pause nothing, and nobody would notice."""
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic):
        raise FerrymanError(
            f"{topic!r} is no topic: Kafka's names have 1 to 249 letters, digits, dots, underscores or hyphens",
            remedy="name a topic, or `outbox` for all of them",
        )


def pause(desk: Desk, topic: str, act: Act) -> bool:
    """Whether it was not paused before; who paused it first stands there."""
    said = {"topic": topic}
    return change(desk, "pause", act, lambda connection: acts.pause(connection, topic, act.who, act.reason), said=said)


def resume(desk: Desk, topic: str, act: Act) -> bool:
    """Whether it was paused."""
    return change(desk, "resume", act, lambda connection: acts.resume(connection, topic), said={"topic": topic})
