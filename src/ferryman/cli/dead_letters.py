"""`ferryman dead-letters`: the webhooks that were given up; acts on them are dry runs without --yes."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ferryman.cli import options, output
from ferryman.cli.options import Order
from ferryman.cli.output import CommandResult, counted, nothing_changed
from ferryman.migrations import chains
from ferryman.runtime.desk import Desk, Story
from ferryman.runtime.errors import Exit, FerrymanError
from ferryman.runtime.times import moment, span
from ferryman.services.webhooks import dead_letters as letters
from ferryman.services.webhooks.dead_letters import (
    DISCARDED,
    REQUEUED,
    STATES,
    WAITING,
    DeadLetter,
    LetterCounts,
    LetterFilter,
    LetterStory,
)

CHUNK = 500
"""The most letters in one transaction."""
_OWNERS = (chains.ENGINE, "webhooks")
_WHICH = "dead letters: --id, --subscription, --code, --type, --from or --to"
_NUMBER = click.IntRange(1, 2**63 - 1)

letter_options = options.decorated(
    click.option("--subscription", type=_NUMBER, metavar="ID", help="Only letters of this subscription."),
    click.option("--code", metavar="CODE", help="Only letters with this code: GONE, SERVER_FAILED, TIMED_OUT, ..."),
    click.option("--type", "event_type", metavar="TYPE", help="Only letters of events of this type."),
    click.option("--from", "since", type=options.MOMENT,
                 help="Only letters given up since this time (2025-11-18T14:00), or in the last (2h)."),
    click.option("--to", "until", type=options.MOMENT, help="Only letters given up before this time; as --from."),
)  # fmt: skip
id_option = click.option("--id", "ids", multiple=True, type=_NUMBER, metavar="ID", help="This one; may be repeated.")


@click.group("dead-letters")
def command() -> None:
    """Look at the webhooks that were given up; requeue them, or put them aside.

    \b
      ferryman dead-letters list                    what waits for a person, newest first
      ferryman dead-letters show 71                 every attempt, and what to do next
      ferryman dead-letters requeue --code SERVER_FAILED --from 2h             what it would do
      ferryman dead-letters requeue --subscription 3 --rate 50 --yes --reason 'the endpoint is up again'
      ferryman dead-letters discard --id 71 --yes --reason 'a test'

    A delivery that has no attempt left ends as a dead letter, which is named by the delivery's id. It waits until
    somebody requeues or discards it.
    """


def _opened(desk: Desk) -> Desk:
    chains.check(desk.connection, _OWNERS)
    return desk


def _wanted(desk: Desk, asked: Mapping[str, Any], state: str | None = WAITING) -> LetterFilter:
    """Return the letters that were asked for. Those that are named by their ids may be in any state."""
    code, ids = asked["code"], asked.get("ids") or None
    return LetterFilter(
        ids=ids, subscription=asked["subscription"], event_type=asked["event_type"],
        code=code.upper() if code else None, state=None if ids else state, **options.period(desk, asked),
    )  # fmt: skip


@command.command("list", short_help="The dead letters that wait for a person.")
@letter_options
@click.option("--state", type=click.Choice([*STATES, "all"], case_sensitive=False), default=WAITING, show_default=True,
              help="Only letters in this state.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Print at most this many.")
@click.option("--before", type=_NUMBER, metavar="NEXT", help="Continue with the `next` of the previous page.")
@options.reading("by hand")
def list_(desk: Desk, *, state: str, limit: int, before: int | None, **asked: Any) -> CommandResult:
    """List dead letters, newest first.

    \b
      ferryman dead-letters list
      ferryman dead-letters list --subscription 3 --code TIMED_OUT --from 1d
      ferryman dead-letters list --state all --limit 500 --json

    `waiting`: nobody has decided. `requeued`: it lives on as another delivery, the next generation. `discarded`: put
    aside; it can still be requeued.
    """
    wanted = _wanted(_opened(desk), asked, None if state == "all" else state)
    with desk.reading() as db:
        found, further = letters.list_letters(db, wanted, before=before, limit=limit)
    data = {"letters": [_as_json(each) for each in found], "next": further}
    return CommandResult(data, _page_lines(found), more=f"there are more: --before {further}" if further else None)


def _page_lines(found: list[DeadLetter]) -> Iterator[str]:
    if not found:
        yield "no dead letters"
        return
    yield output.table(
        ("id", "given up", "subscription", "event", "type", "generation", "attempts", "code", "state"),
        [
            (str(each.id), moment(each.created_at), f"{each.subscription_id}{'' if each.active else ' (disabled)'}",
             str(each.event_id), each.event_type, str(each.generation), str(each.attempts), each.error_code, each.state)
            for each in found
        ],
    )  # fmt: skip


def _as_json(row: Any) -> dict[str, Any]:
    return output.with_iso_times({name: each for name, each in row._asdict().items() if name != "number"})


@command.command("show", short_help="Show one: every attempt, and what to do next.")
@click.argument("identity", type=_NUMBER, metavar="ID")
@options.reading("by hand")
def show(desk: Desk, *, identity: int) -> CommandResult:
    """Show a dead letter: every attempt of every job, its former and later generations, and the command to run next.

    \b
      ferryman dead-letters show 71

    A job is one attempt; it is sent again only if its worker was lost. The log of attempts forgets old ones.
    """
    with _opened(desk).acting() as db:
        found = letters.show_letter(db, identity)
    if found is None:
        raise _unknown([identity])
    told = _told(found.letter)
    jobs = [
        {**_as_json(job), "attempts": [_as_json(attempt) for attempt in job.attempts]} for job in found.jobs
    ]  # fmt: skip
    generations = [_as_json(each) for each in found.generations]
    data = {**_as_json(found.letter), "why": told.reason, "next": told.next, "jobs": jobs, "generations": generations}
    return CommandResult(data, [*output.story_lines(told), *_shown_lines(found)])


def _told(letter: DeadLetter) -> Story:
    given_up = f"given up after {letter.attempts} attempts: {letter.error_code}"
    requeue_it = f"ferryman dead-letters requeue --id {letter.id}"
    if letter.requeued_as:
        return Story(f"{given_up}; it was requeued", f"ferryman saga show webhooks {letter.requeued_as}")
    if letter.discarded_at:
        aside = f"discarded by {letter.who} at {moment(letter.discarded_at)} ({letter.reason})"
        return Story(f"{given_up}; {aside}", requeue_it)
    if not letter.active:
        return Story(
            f"{given_up}; its subscription {letter.subscription_id} is disabled", f"enable it, then {requeue_it}"
        )
    return Story(given_up, requeue_it)


def _shown_lines(found: LetterStory) -> Iterator[str]:
    letter = found.letter
    yield from output.named_lines([
        ("id", letter.id),
        ("event", f"{letter.event_id}, {letter.event_type}"),
        ("subscription", letter.subscription_id),
        ("given up", moment(letter.created_at)),
    ])  # fmt: skip
    yield output.table(
        ("attempt", "job", "began", "took", "outcome", "code", "error", "answer"),
        [
            (str(job.attempt), str(job.id), *cells)
            for job in found.jobs
            for cells in [_attempt(each) for each in job.attempts] or [("", "", job.status, "", "not recorded", "")]
        ],
    )  # fmt: skip
    if len(found.generations) > 1:
        yield output.table(
            ("generation", "id", "status", "attempts", "code", "routed", "changed"),
            [
                (str(each.generation), str(each.id), each.status, str(each.attempts), each.error_code or "",
                 moment(each.created_at), moment(each.updated_at))
                for each in found.generations
            ],
        )  # fmt: skip


def _attempt(each: letters.LetterAttempt) -> tuple[str, ...]:
    took = f"{(each.ended_at - each.began_at).total_seconds():.1f} s" if each.ended_at else ""
    said = (each.outcome, each.code or "", output.shortened(each.error or ""), output.shortened(each.excerpt or ""))
    return moment(each.began_at), took, *said


@command.command("requeue", short_help="Deliver dead letters again, as new deliveries.")
@id_option
@letter_options
@click.option("--rate", type=click.FloatRange(min=0.01, max=1e9), help="The most letters a second. Default: no limit.")
@options.act_options
def requeue(order: Order, *, rate: float | None, **asked: Any) -> CommandResult:
    """Deliver dead letters again, once the cause is mended: each as a new delivery, with all its attempts.

    \b
      ferryman dead-letters requeue --id 71                        what it would do
      ferryman dead-letters requeue --id 71 --yes --reason 'asked for by the shop'
      ferryman dead-letters requeue --subscription 3 --from 2d --rate 50 --yes --reason 'the endpoint is up again'

    Without --yes nothing is changed. A letter is requeued once: the new delivery is of the next generation, and due at
    once; the dead one stays as it is. The receiver sees the same webhook-id again. If the new one dies too, that is
    another letter. Discarded letters are requeued by their --id alone. Letters of disabled subscriptions are left,
    since they would be dead again at once: with --id that is an error, else the exit code is 5. A requeue that was
    stopped is continued by the same command. The act is written into the audit.
    """
    options.refuse_everything(asked, _WHICH)
    with order.desk("by hand") as desk:
        wanted, counts = _planned(_opened(desk), asked, (WAITING, DISCARDED))
        total = sum(counts.by_code.values()) - counts.disabled
        if wanted.ids and counts.disabled:
            raise FerrymanError("the subscription is disabled: the letter would be dead again at once",
                                remedy="enable the subscription first")  # fmt: skip
        exit_code = Exit.PARTIAL if order.yes and counts.disabled else Exit.OK
        if not order.yes or not total:
            data = {"dry_run": not order.yes, "letters": total, "by_code": counts.by_code, "disabled": counts.disabled,
                    "seconds": total / rate if rate else None}  # fmt: skip
            return CommandResult(data, _plan_lines("requeue", total, counts, rate), exit_code)
        done: dict[int, int] = {}
        with options.resumable(lambda: f"{_letters(len(done))} requeued; run the same command again to continue"):
            for portion in _portions(desk, wanted, counts.last, rate):
                with desk.acting() as db:
                    done |= letters.requeue(db, portion, who=order.act.who, reason=order.act.reason)
    data = {"dry_run": False, "letters": len(done), "disabled": counts.disabled,
            "requeued": [{"id": old, "requeued_as": new} for old, new in done.items()]}  # fmt: skip
    lines = [f"{_letters(len(done))} requeued, due now; `ferryman run webhooks` makes their jobs"]
    return CommandResult(data, [*lines, *_disabled_lines(counts)], exit_code)


@command.command("discard", short_help="Put dead letters aside.")
@id_option
@letter_options
@options.act_options
def discard(order: Order, **asked: Any) -> CommandResult:
    """Put dead letters aside: somebody has looked at them, and they wait no more.

    \b
      ferryman dead-letters discard --id 71                        what it would do
      ferryman dead-letters discard --code GONE --to 3d --yes --reason 'the shop has closed'

    Without --yes nothing is changed. The delivery stays as it is. A discarded letter can still be requeued by its --id.
    The act is written into the audit.
    """
    options.refuse_everything(asked, _WHICH)
    with order.desk("by hand") as desk:
        wanted, counts = _planned(_opened(desk), asked, (WAITING,))
        total = sum(counts.by_code.values())
        if not order.yes or not total:
            data = {"dry_run": not order.yes, "letters": total, "by_code": counts.by_code}
            return CommandResult(data, _plan_lines("discard", total, counts, None, told=False))
        done = 0
        with options.resumable(lambda: f"{_letters(done)} discarded; run the same command again to continue"):
            for portion in _portions(desk, wanted, counts.last, None):
                with desk.acting() as db:
                    done += len(letters.discard(db, portion, who=order.act.who, reason=order.act.reason))
    return CommandResult({"dry_run": False, "letters": done}, [f"{_letters(done)} discarded"])


def _planned(desk: Desk, asked: Mapping[str, Any], states: tuple[str, ...]) -> tuple[LetterFilter, LetterCounts]:
    """Return what was asked for, and count it; refuse letters named by ids that are not in these states."""
    wanted = _wanted(desk, asked)
    with desk.acting() as db:
        if wanted.ids:
            named, _ = letters.list_letters(db, wanted, limit=len(wanted.ids))
            _check(wanted.ids, {each.id: each for each in named}, states)
        return wanted, letters.count_letters(db, wanted)


def _check(ids: tuple[int, ...], named: Mapping[int, DeadLetter], states: tuple[str, ...]) -> None:
    if missing := [each for each in ids if each not in named]:
        raise _unknown(missing)
    for each in named.values():
        if each.state == REQUEUED:
            now = f"`ferryman saga show webhooks {each.requeued_as}`"
            raise FerrymanError(f"{each.id} was requeued before, as {each.requeued_as}", remedy=f"{now} says more")
        if each.state not in states:
            raise FerrymanError(f"{each.id} is {each.state} already, by {each.who}: {each.reason}",
                                remedy=f"`ferryman dead-letters show {each.id}` says more")  # fmt: skip


def _unknown(ids: list[int]) -> FerrymanError:
    return FerrymanError(
        f"there is no dead letter {', '.join(map(str, ids))}, with these conditions",
        remedy="`ferryman dead-letters list` names those that wait, `ferryman saga show webhooks` shows any delivery",
    )


def _portions(desk: Desk, wanted: LetterFilter, last: int, rate: float | None) -> Iterator[list[int]]:
    """Yield the ids of letters to act on, oldest first, at most `rate` a second."""
    most = max(1, min(CHUNK, int(rate))) if rate else CHUNK
    began, after, count = time.monotonic(), 0, 0
    while True:
        with desk.acting() as db:
            found = letters.next_letters(db, wanted, after=after, last=last, most=most)
        if not found:
            return
        if rate:
            time.sleep(max(0.0, began + count / rate - time.monotonic()))
        yield [each.id for each in found]
        after, count = found[-1].number, count + len(found)


def _plan_lines(verb: str, total: int, counts: LetterCounts, rate: float | None, *, told: bool = True) -> Iterator[str]:
    yield f"would {verb} {_letters(total)}{counted(counts.by_code)}"
    if told:
        yield from _disabled_lines(counts)
    if rate and total:
        yield f"at this rate it takes {span(total / rate)}"
    yield nothing_changed(total)


def _disabled_lines(counts: LetterCounts) -> Iterator[str]:
    if counts.disabled:
        yield f"left as they are: {counts.disabled:,} of disabled subscriptions; enable those first"


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"
