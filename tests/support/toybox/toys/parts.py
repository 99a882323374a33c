"""The parts of toys."""

from collections.abc import Mapping
from typing import Any

from ferryman import Section, setting
from ferryman.saga.machine import Machine, State

MACHINE = Machine("toy", "toys.toys", "id", {"NEW": State("It is new.", ("OLD",)), "OLD": State("It is old.")})


class Toys(Section):
    """The settings of toys."""

    shop_url: str | None = setting(None, "The database of the shop.")


class Builder:
    """A service that builds nothing."""

    name = "toys"

    def run(self, life: Any) -> None:
        pass


def toys(_settings: Any) -> Builder:
    return Builder()


def outboxes(_settings: Any) -> Mapping[str, Any]:
    return {"toys": {"table": "toys.outbox"}}
