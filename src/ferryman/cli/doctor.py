"""`ferryman doctor`"""

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json
from ferryman.doctor import Check, Status, examine
from ferryman.runtime.errors import Exit

MARKS = {
    Status.OK: click.style("✓", fg="green"),
    Status.WARNING: click.style("!", fg="yellow"),
    Status.FAILED: click.style("✗", fg="red"),
    Status.SKIPPED: click.style("-", dim=True),
}


@click.command("doctor")
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> int:
    """Check everything that Ferryman depends on: a line for each check, a remedy for each failure.

    Exit 0 if no check failed (warnings do not count), 4 otherwise.
    """
    settings = wiring.settings(context)
    checks: list[Check] = []
    for check in examine(settings):
        checks.append(check)
        if not as_json:
            print_check(check)
    healthy = all(check.status is not Status.FAILED for check in checks)
    if as_json:
        print_json({"healthy": healthy, "checks": [check.as_dict() for check in checks]})
    return Exit.OK if healthy else Exit.UNREACHABLE


def print_check(check: Check) -> None:
    click.echo(f"{MARKS[check.status]} {check.name:<22} {check.detail}")
    if check.remedy:
        setting = f" [setting {check.setting}]" if check.setting else ""
        click.echo(f"  {'':<22} → {check.remedy}{setting}")
