"""The command `ferryman demo`."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, say, wheels_option
from ferryman.runtime import logs
from ferryman.runtime.errors import Exit
from ferryman.runtime.settings import Log

if TYPE_CHECKING:
    from ferryman.demo.payments import PaymentsOutcome
    from ferryman.testing.parts import Climb, Reach


@click.command("demo")
@click.argument("name", type=click.Choice(["crossing", "payments", "memos", "webhooks", "reviews"]), default="crossing")
@wheels_option
@json_option
def command(name: str, wheels: bool, as_json: bool) -> int:
    """Start PostgreSQL and Kafka on this machine, show Ferryman at work, and clean up.

    \b
      ferryman demo              orders are appended and published: every committed one must be in the topic once, in
                                 order, and no order that was rolled back
      ferryman demo payments     payments between two databases: one process after another is killed with -9 and
                                 started again, and an audit proves that no money was lost or taken twice
      ferryman demo memos        mails about memos: a worker is killed when the mail server has just taken one, which is
                                 held until a person has looked
      ferryman demo webhooks     one endpoint heals, one ends in the dead letters and is requeued, while worker and
                                 orchestrator are killed with -9: the receiver counts what it got
      ferryman demo reviews      the notifier is killed with -9 when the provider has just taken a mail, a wrong
                                 recipient is replaced, a new version is told: the provider counts what it sent

    It uses no server of yours: it starts its own and removes them. Exit 0 if everything was right.
    """
    began = time.monotonic()
    wiring.embedded()  # says which package is missing
    play = _PLAYS[name]
    outcome, good, story, verdict = play("wheels" if wheels else "machine", as_json)
    seconds = time.monotonic() - began
    if as_json:
        print_json({**outcome, "seconds": round(seconds, 2)})
    else:
        click.echo(story)
        say(f"\n{verdict}; everything stopped after {seconds:.1f} s")
    return Exit.OK if good else Exit.FAILURE


Played = tuple[dict[str, Any], bool, str, str]
"""A demo's outcome as JSON data, whether it is good, the text that tells it, and the verdict."""


def _play_crossing(reach: "Reach", as_json: bool) -> Played:
    from ferryman.cli.doctor import print_check
    from ferryman.demo.crossing import cross
    from ferryman.doctor import Check, Status, examine

    began = time.monotonic()
    checks: list[Check] = []
    logs.configure(Log(level="warning"))
    with wiring.embedded().open_stack(reach=reach, registry_too=False) as parts:
        ready_seconds = time.monotonic() - began
        if not as_json:
            _print_parts(parts.climbs, "PostgreSQL and Kafka are", ready_seconds)
        for check in examine(parts.settings):
            checks.append(check)
            if not as_json:
                print_check(check)
        crossing = cross(parts.settings, parts.database_url)
    healthy = all(check.status in (Status.OK, Status.SKIPPED) for check in checks)
    good = healthy and crossing.good
    outcome = {
        "healthy": healthy,
        "ready_seconds": round(ready_seconds, 2),
        "parts": [str(climb) for climb in parts.climbs],
        "checks": [check.as_dict() for check in checks],
        "crossing": {**asdict(crossing), "good": crossing.good},
    }
    story = (
        f"\n{crossing.committed} orders were appended and committed, {crossing.rolled_back} were rolled back;\n"
        f"the relay published in {crossing.seconds:.1f} s, and the topic has {crossing.read} records: "
        f"{crossing.missing} missing, {crossing.doubled} doubled, {crossing.of_rolled_back} of a rolled back order, "
        f"{crossing.out_of_order} out of order"
    )
    failed = "messages were lost or doubled" if healthy else "a check failed"
    return outcome, good, story, "every committed message was published" if good else failed


def _play_payments(reach: "Reach", as_json: bool) -> Played:
    from rich.console import Console

    from ferryman.demo import payments, view

    logs.configure(Log(level="error"))

    def ready(climbs: "Sequence[Climb]", seconds: float) -> None:
        if not as_json:
            _print_parts(climbs, "two databases and Kafka are", seconds)

    with view.viewer(Console(stderr=True, quiet=as_json)) as show:
        outcome = payments.run(reach, wiring.environment(), show, ready)
    verdict = "no payment was lost and no money was taken twice" if outcome.good else "something is wrong: see above"
    return outcome.as_json(), outcome.good, _payments_story(outcome), verdict


def _play_memos(reach: "Reach", as_json: bool) -> Played:
    from ferryman.demo import mailing

    logs.configure(Log(level="error"))
    outcome = mailing.run(reach, wiring.environment(), (lambda _: None) if as_json else click.echo)
    story = (
        f"\n{outcome.memos} memos; the mail server received {outcome.received} mails: {outcome.missing} missing, "
        f"{outcome.doubled} doubled; {outcome.held} had been in doubt"
    )
    verdict = "every mail arrived once" if outcome.good else "something is wrong: see above"
    return outcome.as_json(), outcome.good, story, verdict


def _play_webhooks(reach: "Reach", as_json: bool) -> Played:
    from ferryman.demo import posting

    logs.configure(Log(level="error"))
    outcome = posting.run(reach, wiring.environment(), (lambda _: None) if as_json else click.echo)
    killed = ", ".join(f"{name} {times}" for name, times in outcome.killed.items())
    story = (
        f"\n{outcome.events} events to 3 endpoints; killed with -9: {killed} times; {outcome.requeued} requeued\n"
        f"the receiver had {outcome.requests} requests and accepted {outcome.accepted}: {outcome.missing} missing, "
        f"{outcome.again} again, {outcome.of_rolled_back} of a rolled back event, {outcome.ids_too_many} ids too many"
    )
    verdict = "every endpoint has every event, each under one id" if outcome.good else "something is wrong: see above"
    return outcome.as_json(), outcome.good, story, verdict


def _play_reviews(reach: "Reach", as_json: bool) -> Played:
    from ferryman.demo import notifying

    logs.configure(Log(level="error"))
    outcome = notifying.run(reach, wiring.environment(), (lambda _: None) if as_json else click.echo)
    story = (
        f"\n2 versions for {outcome.required} recipients; the provider sent {outcome.sent} mails: "
        f"{outcome.missing} missing, {outcome.doubled} doubled, {outcome.of_others} to others; {outcome.repeated} had "
        f"been in doubt, {outcome.without_evidence} are marked without its evidence"
    )
    verdict = "everybody was told once of each version" if outcome.good else "something is wrong: see above"
    return outcome.as_json(), outcome.good, story, verdict


_PLAYS = {
    "crossing": _play_crossing, "payments": _play_payments, "memos": _play_memos, "webhooks": _play_webhooks,
    "reviews": _play_reviews,
}  # fmt: skip


def _payments_story(outcome: "PaymentsOutcome") -> str:
    state, books = outcome.state, outcome.books.as_json()
    killed = ", ".join(f"{name} {times}" for name, times in state.killed.items())
    ended = f"{state.succeeded:,} succeeded, {state.failed:,} failed, {state.pending:,} are pending"
    lines = [f"{state.sent:,} payments were requested: {ended}", f"killed with -9: {killed} times"]
    for currency, sums in books["sums"].items():
        lines.append(
            f"{currency}: {sums['succeeded'] / 100:,.2f} succeeded, {sums['deducted'] / 100:,.2f} deducted for them; "
            f"wallets hold {sums['wallets'] / 100:,.2f} of {sums['opened'] / 100:,.2f}"
        )
    return "\n".join([*lines, *(f"{each['what']}: {each['id']}: {each['why']}" for each in books["wrong"])])


def _print_parts(climbs: "Sequence[Climb]", parts: str, seconds: float) -> None:
    for climb in climbs:
        say(str(climb))
    say(f"{parts} ready after {seconds:.1f} s\n")
