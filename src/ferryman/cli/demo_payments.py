"""`ferryman demo payments`: money moves once, whatever dies."""

import time
from importlib import import_module
from typing import Any

import click
from rich.console import Console

from ferryman.cli import wiring
from ferryman.cli.output import print_json, say
from ferryman.runtime import logs
from ferryman.runtime.exits import Exit
from ferryman.runtime.settings import Log


def play(*, as_json: bool) -> int:
    """Payments flow, one process after another is killed, and an audit proves that nothing was lost or doubled."""
    began = time.monotonic()
    wiring.embedded()  # says which package is missing
    logs.configure(Log(level="error"))
    payments, view = import_module("ferryman.demo.payments"), import_module("ferryman.demo.view")
    console = Console(stderr=True, quiet=as_json)

    def ready(climbs: Any, seconds: float) -> None:
        for climb in climbs:
            console.print(str(climb), highlight=False)
        console.print(f"two databases are ready and migrated after {seconds:.1f} s\n", highlight=False)

    with view.viewer(console) as show:
        verdict = payments.run(payments.Wanted(), wiring.environment(), show, ready)
    seconds = time.monotonic() - began
    if as_json:
        print_json({**verdict.as_json(), "seconds": round(seconds, 2)})
    else:
        click.echo(_story(verdict))
        say(f"\n{_VERDICTS[verdict.good]}; everything stopped after {seconds:.1f} s")
    return Exit.OK if verdict.good else Exit.FAILURE


_VERDICTS = {True: "no payment was lost and no money was taken twice", False: "something is wrong: the audit says what"}


def _story(verdict: Any) -> str:
    moment, books = verdict.moment, verdict.books.as_json()
    killed = ", ".join(f"{name} {times}" for name, times in moment.killed.items())
    over = f"{moment.succeeded:,} succeeded, {moment.failed:,} failed, {moment.pending:,} are on their way"
    lines = [f"{moment.sent:,} payments were requested: {over}", f"killed with -9: {killed} times"]
    for currency, sums in books["sums"].items():
        lines.append(
            f"{currency}: {sums['succeeded'] / 100:,.2f} succeeded, {sums['deducted'] / 100:,.2f} deducted for them; "
            f"wallets hold {sums['wallets'] / 100:,.2f} of {sums['opened'] / 100:,.2f}"
        )
    lines += [f"{each['what']}: {each['id']}: {each['why']}" for each in books["wrong"]]
    return "\n".join(lines)
