"""`ferryman demo`"""

import time

import click

from ferryman.cli import wiring
from ferryman.cli.doctor import print_check
from ferryman.cli.output import json_option, print_json, say
from ferryman.doctor import Check, Status, examine
from ferryman.runtime.exits import Exit


@click.command("demo")
@json_option
def command(as_json: bool) -> int:
    """Bring up PostgreSQL and Kafka on this machine, migrate, show the health of everything, and clean up.

    It touches no server of yours: what it starts is its own and goes away. Exit 0 when all was healthy.
    """
    began = time.monotonic()
    checks: list[Check] = []
    with wiring.embedded().open_house(embedded=True, registry_too=False) as rooms:
        ready_seconds = time.monotonic() - began
        if not as_json:
            for climb in rooms.climbs:
                click.echo(str(climb))
            click.echo(f"ready and migrated after {ready_seconds:.1f} s\n")
        for check in examine(rooms.settings):
            checks.append(check)
            if not as_json:
                print_check(check)
    healthy = all(check.status in (Status.OK, Status.SKIPPED) for check in checks)
    if as_json:
        print_json({
            "healthy": healthy,
            "ready_seconds": round(ready_seconds, 2),
            "seconds": round(time.monotonic() - began, 2),
            "parts": [str(climb) for climb in rooms.climbs],
            "checks": [check.as_dict() for check in checks],
        })  # fmt: skip
    else:
        verdict = "all healthy" if healthy else "not healthy"
        say(f"\n{verdict}; everything stopped after {time.monotonic() - began:.1f} s")
    return Exit.OK if healthy else Exit.FAILURE
