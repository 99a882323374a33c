"""`ferryman outbox replay`, `discard` and `rebase`: acts on entries, which are dry runs without --yes."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from ferryman.cli import options, outbox_rows
from ferryman.cli.options import JournalType, Order
from ferryman.cli.output import CommandResult, counted, nothing_changed, say
from ferryman.relay.admin import discard_entries, entries
from ferryman.relay.admin import replay as replays
from ferryman.relay.admin.discard_entries import DISCARDABLE, DiscardPlan
from ferryman.relay.admin.entries import DISCARDED, FAILED, PENDING, PUBLISHED, REPLAYING, EntrySelection
from ferryman.relay.admin.replay import REPLAYABLE, Replay
from ferryman.relay.store.kafka_cluster import forget_cluster
from ferryman.relay.store.rebase import Rebased
from ferryman.relay.store.rebase import rebase as rebase_outbox
from ferryman.runtime.desk import Desk
from ferryman.runtime.errors import Exit, FerrymanError, Transient
from ferryman.runtime.times import span

SEARCH_SECONDS = 10.0
_COUNT_SECONDS = 20.0
_POLL_SECONDS = 0.5
_WHICH = "entries: an ID, --topic, --key, --type, --status, --destination, --from or --to"

filter_options = options.decorated(
    click.option("--topic", metavar="TOPIC", help="Only messages for this topic."),
    click.option("--key", metavar="KEY", help="Only messages with this key."),
    click.option("--type", metavar="TYPE", help="Only messages of this type."),
    options.outbox_option,
    options.destination_option,
)


def entry_options(statuses: Sequence[str], default: str) -> Callable[[options.Command], options.Command]:
    """Return the options by which an act selects entries."""
    return options.decorated(
        click.argument("named", nargs=-1, type=JournalType(options.ENTRY_REFERENCE), metavar="[ID]..."),
        click.option("--id", "references", multiple=True, type=JournalType(options.ENTRY_REFERENCE),
                     metavar="ID|POSITION", help="This entry; may be given again. The same as [ID]...."),
        filter_options,
        click.option("--status", "statuses", multiple=True,
                     type=JournalType(click.Choice(statuses, case_sensitive=False)),
                     metavar="|".join(statuses),
                     help=f"Only entries with this status; may be given again. Default: {default}."),
        click.option("--from", "since", type=options.MOMENT,
                     help="Only from this time on (2025-11-18T14:00), or since so long ago (2h)."),
        click.option("--to", "until", type=options.MOMENT,
                     help="Only before this time; the same forms as --from."),
    )  # fmt: skip


def _with_named(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for, with IDs that were given without an option among the references."""
    given = dict(asked)
    return {**given, "references": (*given["references"], *given.pop("named"))}


def entry_selection(desk: Desk, asked: Mapping[str, Any]) -> EntrySelection:
    """Return the selection that was asked for by these options."""
    if asked["destination"] is not None:
        raise click.UsageError("--destination goes with --outbox: entries of the journal have a --topic")
    references = asked.get("references")
    return EntrySelection(
        positions=entries.positions_of(desk, references, seconds=SEARCH_SECONDS) if references else None,
        statuses=asked["statuses"] or None,
        **{name: asked[name] for name in ("topic", "key", "type")},
        **options.period(desk, asked),
    )


@click.command("replay", short_help="Publish entries once more, with the same ids.")
@entry_options(REPLAYABLE, default="PUBLISHED and FAILED")
@click.option("--rate", type=click.FloatRange(min=0.01, max=1e9), help="The most entries a second. Default: no limit.")
@click.option("--wait", is_flag=True, help="Wait until the relay has published them all.")
@click.option(
    "--resume", type=click.IntRange(1, 2**63 - 1), metavar="REPLAY", help="Continue a replay that was stopped."
)
@options.act_options
def replay(order: Order, *, rate: float | None, wait: bool, resume: int | None, **asked: Any) -> CommandResult:
    """Publish entries once more, with the same ids and bytes: failed ones, or published ones that are still retained.

    \b
      ferryman outbox replay --status FAILED                     what it would do
      ferryman outbox replay --status FAILED --yes --reason 'the topic exists now'
      ferryman outbox replay --topic orders --from 2h --to 1h --rate 500 --yes --reason 'a reader lost them' --wait
      ferryman outbox replay 4711 --yes --reason 'asked for by billing'
      ferryman outbox replay --resume 3
      ferryman outbox replay --outbox hooks --destination https://shop.example/hook --yes --reason 'it is up again'

    Without --yes nothing is changed. Entries are queued, and the relay publishes them, per key in their order, with
    the header x-replay; readers that remember ids skip them. FAILED and DISCARDED entries come behind later ones of
    their keys, which did not wait for them. PENDING entries are never replayed; RETRYING, PARKED and
    REPLAYING ones are left as they are. A replay that was stopped, even by kill -9, continues with --resume, and
    neither doubles nor skips. Each replay is recorded in the audit.

    With --outbox, rows that were given up or wait for another attempt are due at once, with all their attempts, and the
    relay or courier sends them. Rows that were delivered are never sent again.
    """
    asked = _with_named(asked)
    if resume is None:
        options.refuse_everything(asked, _WHICH)
    elif order.yes or order.act.reason != options.NO_REASON or any(each not in (None, ()) for each in asked.values()):
        raise click.UsageError("--resume continues what was asked for then: give only --rate, --wait and --json")
    if order.outbox:
        return outbox_rows.replay(order, {**asked, "rate": rate, "wait": wait, "resume": resume})
    with order.desk("outbox") as desk:
        if resume is not None:
            stopped = replays.load(desk, resume)
            stopped.rate = rate or stopped.rate
            return _queue(desk, stopped, None, {}, wait=wait)
        selection = entry_selection(desk, asked)
        count = entries.count(desk, selection, seconds=_COUNT_SECONDS)
        wanted = replays.statuses(selection)
        by_status = {status: n for status, n in sorted(count.entries.items()) if status in wanted}
        skipped = {status: n for status, n in sorted(count.entries.items()) if status not in wanted}
        expected = sum(by_status.values())
        if selection.positions and not expected and PENDING in skipped:
            raise FerrymanError(
                "it is PENDING: an entry that was not published cannot be published once more",
                remedy="`ferryman outbox show` says why it waits",
            )
        if order.yes and (expected or not count.complete):
            started = replays.start(desk, selection, order.act, rate=rate, expected=expected)
            return _queue(desk, started, expected, skipped, wait=wait)
    plan = {
        "dry_run": not order.yes, "replay": None, "entries": expected, "by_status": by_status, "skipped": skipped,
        "payload_bytes": sum(count.payload_bytes[status] for status in by_status),
        "seconds": expected / rate if rate else None, "complete": count.complete,
    }  # fmt: skip
    return CommandResult(plan, _plan_lines(plan))


def _plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    at_least = "" if plan["complete"] else f"at least (counted for {_COUNT_SECONDS:.0f} s) "
    yield f"would publish {at_least}{plan['entries']:,} entries once more{counted(plan['by_status'])}"
    if plan["payload_bytes"]:
        yield f"their payloads have {plan['payload_bytes']:,} bytes"
    if plan["skipped"]:
        yield _left(plan["skipped"])
    if any(plan["by_status"].get(status) for status in (FAILED, DISCARDED)):
        yield "those that were not published yet come behind later ones of their keys, which did not wait for them"
    if plan["seconds"] is not None:
        yield f"at this rate it takes {span(plan['seconds'])}"
    yield nothing_changed(plan["entries"])


def _left(skipped: Mapping[str, int]) -> str:
    return f"left as they are: {sum(skipped.values()):,}{counted(skipped)}"


def _queue(desk: Desk, current: Replay, expected: int | None, skipped: dict[str, int], *, wait: bool) -> CommandResult:
    """Queue what is left, with a bar on a terminal; if stopped, say how to continue."""
    how = f"continue with: ferryman outbox replay --resume {current.id}"
    say(f"replay {current.id}; if it is stopped, {how}")
    done: dict[str, Any] = {"dry_run": False, "replay": current.id, "skipped": skipped}
    try:
        if current.finished_at is None:
            with _bar("queueing", expected) as moved:
                replays.run(desk, current, lambda each: moved(each.entries))
        left, failed = _published(desk, current) if wait else replays.left(desk, current)
    except (KeyboardInterrupt, Transient) as stop:
        say(f"stopped with {current.entries:,} entries queued; {how}")
        if isinstance(stop, KeyboardInterrupt):
            raise
        done |= {"entries": current.entries, "finished": False, "error": stop.message}
        return CommandResult(done, (), Exit.PARTIAL, more=f"ferryman: {stop}")
    published = current.entries - left - failed if wait else None
    done |= {"entries": current.entries, "finished": True, "published": published, "failed": failed}
    queued = f"{current.entries:,} entries queued{f'; {_left(skipped)}' if skipped else ''}; the relay publishes them"
    said = f"{published:,} entries published once more; {failed:,} failed" if wait else queued
    return CommandResult(done, [said], Exit.PARTIAL if wait and failed else Exit.OK)


def _published(desk: Desk, current: Replay) -> tuple[int, int]:
    """Wait until the relay has published all. Return how many are left, and how many failed."""
    total, failed = replays.left(desk, current)
    left = total
    with _bar("publishing", total) as moved:
        while left:
            time.sleep(_POLL_SECONDS)
            left, failed = replays.left(desk, current)
            moved(total - left)
    return left, failed


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal; in a pipe show none."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


_REFUSED = (
    (
        PENDING,
        "a PENDING entry cannot be discarded: it has not been tried",
        "pause its topic first (`ferryman pause TOPIC`): the relay parks it, and PARKED entries can be discarded",
    ),
    (PUBLISHED, "a PUBLISHED entry cannot be discarded: Kafka has it", "append a message that takes it back"),
    (REPLAYING, "a REPLAYING entry cannot be discarded: it is being published once more", "let the replay end"),
)


@click.command("discard", short_help="Give failed or waiting entries up.")
@entry_options(DISCARDABLE, default="all of these")
@options.act_options
def discard(order: Order, **asked: Any) -> CommandResult:
    """Give up entries that failed, are retried, or wait: they are not published, and their keys continue.

    \b
      ferryman outbox discard --id 4711                          what it would do
      ferryman outbox discard --id 4711 --yes --reason 'a test order'
      ferryman outbox discard --topic orders --key 17 --yes --reason 'the customer is gone'
      ferryman outbox discard --status FAILED --to 3d --yes --reason 'too late to matter'
      ferryman outbox discard --outbox hooks 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11 --yes --reason 'a test'

    Without --yes nothing is changed. When the first entry of a parked key is discarded, the next one is tried. A
    discarded entry can be published after all, with `outbox replay --id`. A PENDING entry was not tried yet and cannot
    be discarded. Each discard is recorded in the audit.

    With --outbox, rows that are not being sent get the description's word for `dead`. The courier's `settled` is not
    told.
    """
    asked = _with_named(asked)
    options.refuse_everything(asked, _WHICH)
    if order.outbox:
        return outbox_rows.discard(order, asked)
    with order.desk("outbox") as desk:
        selection = entry_selection(desk, asked)
        plan = discard_entries.plan(desk, selection)
        for status, why, remedy in _REFUSED:
            if plan.others.get(status):
                raise FerrymanError(why, remedy=remedy)
        if not order.yes or not plan.entries:
            data = {"entries": plan.entries, "by_status": plan.by_status, "keys": plan.keys}
            return CommandResult({"dry_run": not order.yes, **data}, _discard_lines(plan))
        done = keys = 0
        with options.resumable(lambda: f"{done:,} entries discarded; run the same command again to continue"):
            for discarded, released in discard_entries.discard(desk, selection, order.act, last=plan.last):
                done, keys = done + discarded, keys + released
    said = f"{done:,} entries discarded; {keys:,} parked keys continue"
    return CommandResult({"dry_run": False, "entries": done, "keys_released": keys}, [said])


def _discard_lines(plan: DiscardPlan) -> Iterator[str]:
    yield f"would discard {plan.entries:,} entries of {plan.keys:,} keys{counted(plan.by_status)}"
    if plan.others.get(DISCARDED):
        yield f"already discarded: {plan.others[DISCARDED]:,}"
    yield nothing_changed(plan.entries)


@click.command("rebase", short_help="After a restore: take this server's numbers.")
@click.option("--kept-xids", is_flag=True, help="After pg_upgrade, which keeps transaction numbers: renumber nothing.")
@click.option("--force", is_flag=True, help="Do it although the numbers are already this server's.")
@click.option("--new-cluster", is_flag=True, help="Let the next relay publish to another Kafka cluster, and only that.")
@click.option("--wait", "wait_seconds", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True,
              metavar="SECONDS", help="How long to wait for writers and relays to end their transactions.")  # fmt: skip
@options.act_options
def rebase(order: Order, *, new_cluster: bool, **how: Any) -> CommandResult:
    """After a restore into another server: give the outbox this server's transaction numbers.

    \b
      ferryman outbox rebase                                    how much still waits, by the old numbers
      ferryman outbox rebase --yes --reason 'restored from the dump of 2 a.m.'
      ferryman outbox rebase --kept-xids --yes --reason 'pg_upgrade to 18'
      ferryman outbox rebase --new-cluster --yes --reason 'we move to the cluster in Frankfurt'

    A copy by pg_dump, by logical replication or into a new server has other transaction numbers, and the relay refuses
    to publish from it. Entries that were published stay published; the others get new numbers and are published. It
    runs in one transaction, as the owner of the schema; writers wait for it. Without --yes nothing is changed.

    An outbox is also bound to the Kafka cluster that its first relay publishes to: --new-cluster lets it go. Stop the
    relays before, so that none publishes to the old cluster any more.
    """
    if new_cluster and (how["kept_xids"] or how["force"]):
        raise click.UsageError("--new-cluster is an act of its own: give it without --kept-xids and --force")
    with order.desk("outbox") as desk:
        if new_cluster:
            recorded = forget_cluster(desk.connection, **asdict(order.act), dry_run=not order.yes)
            data = {"dry_run": not order.yes, "kafka_cluster": recorded}
            return CommandResult(data, _cluster_lines(recorded, dry_run=not order.yes))
        done = rebase_outbox(desk.connection, **asdict(order.act), dry_run=not order.yes, **how)
    return CommandResult(asdict(done), _rebased_lines(done))


def _cluster_lines(recorded: str | None, *, dry_run: bool) -> Iterator[str]:
    if recorded is None:
        yield "no Kafka cluster is recorded: the first relay that publishes records its own"
    elif dry_run:
        yield f"entries are published to the Kafka cluster {recorded}"
        yield nothing_changed(selected=1)
    else:
        yield f"the Kafka cluster {recorded} is forgotten: the next relay that publishes records its own"


def _rebased_lines(done: Rebased) -> Iterator[str]:
    yield f"{done.pending:,} entries wait to be published; {done.settled - done.exceptions:,} were published"
    if done.exceptions:
        yield f"{done.exceptions:,} are RETRYING, PARKED, FAILED, REPLAYING or DISCARDED, and stay so"
    if done.dry_run:
        yield nothing_changed(selected=1)
        return
    yield f"{done.renumbered:,} have new numbers; the relay can continue"
    if any(done.corrected):
        yield f"the counts of the segments were corrected by {', '.join(map(str, done.corrected))}"
    for sequence in done.mended_sequences:
        yield f"the sequence {sequence} was behind its table and was moved on"
