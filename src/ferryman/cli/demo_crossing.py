"""`ferryman demo`: messages cross."""

import time
from dataclasses import asdict
from importlib import import_module
from typing import Any

import click

from ferryman.cli import wiring
from ferryman.cli.doctor import print_check
from ferryman.cli.output import print_json, say
from ferryman.doctor import Check, Status, examine
from ferryman.runtime import logs
from ferryman.runtime.exits import Exit
from ferryman.runtime.settings import Log

_ORDERS = 10_000


def play(*, as_json: bool) -> int:
    """Orders are appended to an outbox, some transactions are rolled back, the relay publishes, and the topic is read
    back: what was committed must be there once, in order, and nothing else.
    """
    began = time.monotonic()
    checks: list[Check] = []
    house = wiring.embedded()
    logs.configure(Log(level="warning"))
    with house.open_house(embedded=True, registry_too=False) as rooms:
        ready_seconds = time.monotonic() - began
        if not as_json:
            for climb in rooms.climbs:
                click.echo(str(climb))
            click.echo(f"ready and migrated after {ready_seconds:.1f} s\n")
        for check in examine(rooms.settings):
            checks.append(check)
            if not as_json:
                print_check(check)
        crossing = import_module("ferryman.testing.crossing").cross(
            rooms.settings,
            rooms.environment["FERRYMAN_DATABASE_URL"],
            rooms.settings.kafka.bootstrap_servers,
            orders=_ORDERS,
        )
        if not as_json:
            click.echo(_story(crossing))
    healthy = all(check.status in (Status.OK, Status.SKIPPED) for check in checks)
    good = healthy and crossing.good
    if as_json:
        print_json({
            "healthy": healthy,
            "ready_seconds": round(ready_seconds, 2),
            "seconds": round(time.monotonic() - began, 2),
            "parts": [str(climb) for climb in rooms.climbs],
            "checks": [check.as_dict() for check in checks],
            "crossing": {**asdict(crossing), "good": crossing.good},
        })  # fmt: skip
    else:
        verdict = (
            "what was committed got across"
            if good
            else "not healthy"
            if not healthy
            else "messages were lost or doubled"
        )
        say(f"\n{verdict}; everything stopped after {time.monotonic() - began:.1f} s")
    return Exit.OK if good else Exit.FAILURE


def _story(crossing: Any) -> str:
    return (
        f"\n{crossing.committed} orders were appended and committed, {crossing.rolled_back} were rolled back;"
        f"\nthe relay published in {crossing.seconds:.1f} s, and the topic has {crossing.read} records: "
        f"{crossing.missing} missing, {crossing.doubled} doubled, {crossing.of_rolled_back} of a rolled back order, "
        f"{crossing.out_of_order} out of order"
    )
