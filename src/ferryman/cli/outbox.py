"""`ferryman outbox`: shows what waits to be published, and why."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import UUID

import click

from ferryman.cli import outbox_rows, output
from ferryman.cli.options import DURATION, ENTRY_REFERENCE, JournalType, outbox_option, reading
from ferryman.cli.outbox_acts import SEARCH_SECONDS, discard, entry_selection, filter_options, rebase, replay
from ferryman.cli.output import CommandResult
from ferryman.relay.admin import entries
from ferryman.relay.admin.described_rows import RowDesk
from ferryman.relay.admin.entries import STATUSES, EntryPage
from ferryman.relay.admin.entry_story import ShownEntry, look
from ferryman.relay.store import backlog
from ferryman.relay.store.entry_views import ListedEntry
from ferryman.runtime.desk import Desk, Row
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.redaction import redact_value
from ferryman.runtime.times import moment, span

_LIST_SECONDS = 5.0
_COUNTS = ("pending", "retrying", "parked", "failed")
_UNLISTED = ("segment", "replay", "changed_at")


@click.group("outbox")
def command() -> None:
    """Look at the outbox, publish entries once more, or discard them.

    \b
      ferryman outbox stats                        how much waits, and what holds it up
      ferryman outbox list --status FAILED         entries that could not be published
      ferryman outbox show 4711                    why an entry is where it is
      ferryman outbox replay --status FAILED       what a replay would do; --yes does it
      ferryman outbox discard --id 4711 --reason 'test data'
      ferryman outbox stats --outbox hooks         the rows of a described table, with any of these commands
      ferryman outbox check hooks                  whether that table fits its description

    An entry is PENDING, then PUBLISHED. An entry that fails is RETRYING, and FAILED when its attempts are used up;
    entries that wait behind it, or for their topic, are PARKED. REPLAYING entries are published once more; DISCARDED
    ones never are. Payloads are never printed, except by `show --payload`.
    """


@command.command("stats", short_help="How much waits, for how long, and what holds it up.")
@outbox_option
@reading("outbox")
def stats(desk: Desk | RowDesk) -> CommandResult:
    """Show how much waits in the outbox, for how long, and what holds it up.

    \b
      ferryman outbox stats
      ferryman outbox stats --json | jq .oldest_age_seconds
      ferryman outbox stats --outbox hooks

    Per topic: how many entries are pending (not read by the relay yet), retrying (or published once more by a replay),
    parked (waiting behind another, or for their topic) and failed; and the age of the oldest that is still to be
    published. Then pauses, topics that Kafka refuses, unfinished replays, the segments of the journal, and the lanes
    with the time since each moved.

    With --outbox, for the 20 destinations with the most waiting rows: how many rows are pending, retrying (they failed,
    and are tried again), sending, lost (their process ended while it had them), failed (given up) and held (a person
    decides). Delivered and discarded rows are not counted.
    """
    if isinstance(desk, RowDesk):
        return outbox_rows.stats(desk)
    with desk.reading() as connection:
        found = backlog.statistics(connection)
    return CommandResult(found, _stats_lines(found))


def _stats_lines(found: Row) -> Iterator[str]:
    if found["topics"]:
        total = [{"topic": "all", **found}] if len(found["topics"]) > 1 else []
        yield output.table(
            ("topic", "pending", "oldest", "retrying", "parked", "failed"),
            [_topic(each) for each in (*found["topics"], *total)],
        )
    else:
        yield "nothing waits: every entry is published"
    for each in found["paused"]:
        what = f"topic {each['topic']}" if each["topic"] else "the whole outbox"
        yield f"{output.paused_line(what, each)} (ferryman resume {each['name']})"
    for each in found["parked_topics"]:
        yield f"parked: topic {each['topic']}, since {moment(each['since'])}: {each['reason']}"
    for each in found["replays"]:
        waiting = f", {each['waiting']:,} of them not published yet" if each["waiting"] else ""
        resume = (
            f"; not all are queued: ferryman outbox replay --resume {each['id']}" if not each["finished_at"] else ""
        )
        yield f"replay {each['id']} by {each['who']} ({each['reason']}): {each['entries']:,} queued{waiting}{resume}"
    yield output.table(
        ("segment", "rows, about", "bytes", ""),
        [
            (each["name"], f"{each['rows_estimate']:,}", f"{each['bytes']:,}", "current" if each["current"] else "")
            for each in found["segments"]
        ],
    )
    yield output.table(
        ("lane", "read up to", "moved", ""),
        [
            (str(each["lane"]), str(each["position_at"]), f"{span(each['window_age_seconds'])} ago",
             "in a step" if each["in_step"] else "")
            for each in found["lanes"]
        ],
    )  # fmt: skip


def _topic(each: Row) -> tuple[str, ...]:
    age = each["oldest_age_seconds"]
    pending, *others = (f"{each[name]:,}" for name in _COUNTS)
    return each["topic"], pending, "-" if age is None else span(age), *others


@command.command("list", short_help="Entries with their status, by position.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=JournalType(click.Choice(STATUSES, case_sensitive=False)),
    metavar="STATUS",
    help=f"Only with this status ({', '.join(STATUSES)}; with --outbox, a word of its table); may be given again.",
)
@filter_options
@click.option("--older-than", "until", type=DURATION,
              help="Only entries appended longer ago than this: 90s, 15m, 2h, 3d.")  # fmt: skip
@click.option("--younger-than", "since", type=DURATION, help="Only entries appended less long ago than this.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The most to print.")
@click.option("--after", type=JournalType(click.IntRange(0, 2**63 - 1)), metavar="POSITION",
              help="Continue after this position: the `next` of the page before.")  # fmt: skip
@reading("outbox")
def list_entries(desk: Desk | RowDesk, *, limit: int, after: Any, **asked: Any) -> CommandResult:
    """List entries in the order of their positions, the oldest first; no payloads.

    \b
      ferryman outbox list --status FAILED
      ferryman outbox list --topic orders --key 4711
      ferryman outbox list --status PENDING --older-than 5m
      ferryman outbox list --younger-than 15m --limit 500 --json
      ferryman outbox list --outbox hooks --destination https://shop.example/hook

    Statuses other than PUBLISHED are found at once, however much is retained. The search for a topic, key or type among
    published entries stops after some seconds; then the command exits 5 and says where to continue.

    With --outbox: rows of its table in the order in which they were written, with the table's own words; --after is
    followed by an id.
    """
    if isinstance(desk, RowDesk):
        return outbox_rows.listed(desk, limit=limit, after=after, **asked)
    page = entries.page(desk, entry_selection(desk, asked), after=after or 0, limit=limit, seconds=_LIST_SECONDS)
    data = {"entries": [_as_listed(each) for each in page.entries], "next": page.next}
    follow = f"--after {page.next}"
    if page.complete:
        return CommandResult(data, _page_lines(page), more=f"there are more: {follow}" if page.next else None)
    stopped = f"searched for {_LIST_SECONDS:.0f} s, up to position {page.next}; there may be more: {follow}"
    return CommandResult(data, _page_lines(page), stopped=stopped)


def _as_listed(entry: ListedEntry) -> dict[str, Any]:
    return {name: value for name, value in output.with_iso_times(asdict(entry)).items() if name not in _UNLISTED}


def _page_lines(page: EntryPage) -> Iterator[str]:
    if page.entries:
        yield output.table(
            ("position", "id", "topic", "key", "type", "status", "attempts", "created", "error"),
            [
                (str(each.position), str(each.id), each.topic, each.key, each.type, each.status, str(each.attempts),
                 moment(each.created_at), output.shortened(each.error or ""))
                for each in page.entries
            ],
        )  # fmt: skip
    elif page.complete:
        yield "no entries"


@command.command("show", short_help="One entry's story: why it is where it is.")
@click.argument("reference", type=JournalType(ENTRY_REFERENCE), metavar="ID|POSITION")
@outbox_option
@click.option("--payload", is_flag=True, help="Print the payload too: it may hold personal data or secrets.")
@click.option("--since", type=DURATION, help="Search for an id only in entries appended since then: 2h, 3d.")
@reading("outbox")
def show(desk: Desk | RowDesk, *, reference: Any, payload: bool, since: timedelta | None) -> CommandResult:
    """Show an entry's whole story: what it is, why it is where it is, and the command to run next.

    \b
      ferryman outbox show 4711
      ferryman outbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11
      ferryman outbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11 --since 2h
      ferryman outbox show --outbox runner 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11

    A position is found at once. Ids have no index, which would slow every writer down: the newest entries are searched
    first, for 10 seconds (some ten million entries); --since shortens the search. A writer may have used an id more
    than once: all entries with it are shown, the newest first. Values of headers with secret names are masked.

    With --outbox: a row with every recorded attempt to send it. Attempts by Kafka are not recorded. This needs the role
    ferryman_monitor, and SELECT on the table: a courier's login alone may not read the audit.
    """
    if isinstance(desk, RowDesk):
        if since is not None:
            raise click.UsageError("--since is of the journal: with --outbox an id is found at once")
        return outbox_rows.shown(desk, reference, payload=payload)
    if isinstance(reference, UUID):
        at = None if since is None else desk.now() - since
        positions, unseen = entries.find(desk, [reference], since=at, seconds=SEARCH_SECONDS)
    else:
        positions, unseen = [reference], None
    seen = [each for position in positions if (each := look(desk, position, payload=payload))]
    if not seen:
        raise _nothing(reference, unseen, since)
    data = {"entries": [_shown_as_dict(each) for each in seen], "complete": unseen is None}
    lines = (line for each in seen for line in _shown_lines(each))
    stopped = f"searched for {SEARCH_SECONDS:.0f} s, down to position {unseen}; older ones with this id are not shown"
    return CommandResult(data, lines, stopped=stopped if unseen is not None else None)


def _nothing(reference: UUID | int, unseen: int | None, since: timedelta | None) -> FerrymanError:
    if unseen is not None:
        return FerrymanError(
            f"no entry {reference} above position {unseen}; the search stopped after {SEARCH_SECONDS:.0f} s",
            remedy="name its position instead: `ferryman outbox list --topic ... --key ...` finds it",
        )
    if since is not None:
        return FerrymanError(f"no entry {reference} since then", remedy="search further back, or leave --since out")
    return FerrymanError(
        f"the outbox has no entry {reference}",
        remedy="its transaction may not have committed; entries past the retention are gone for good",
    )


def _shown_as_dict(seen: ShownEntry) -> dict[str, Any]:
    facts = seen.facts
    acts = [{name: act[name] for name in ("at", "act", "who", "reason", "entries")} for act in seen.audit]
    shown = {
        **output.with_iso_times(asdict(seen.entry)),
        "content_type": facts["content_type"],
        "headers": redact_value("", facts["headers"]),
        "reason": seen.story.reason,
        "next": seen.story.next,
        "audit": [output.with_iso_times(act) for act in acts],
    }
    if facts["payload"] is not None:
        shown["payload"], shown["payload_base64"] = output.decoded(facts["payload"])
    return shown


def _shown_lines(seen: ShownEntry) -> Iterator[str]:
    entry, facts = seen.entry, seen.facts
    of = f" of {facts['content_type']}" if facts["content_type"] else ""
    yield from output.story_lines(seen.story)
    yield from output.named_lines([
        ("id", entry.id),
        ("position", f"{entry.position} (lane {entry.lane}, segment {entry.segment})"),
        ("topic", entry.topic),
        ("key", entry.key),
        ("type", entry.type),
        ("appended", moment(entry.created_at)),
        ("payload", f"{entry.payload_bytes:,} bytes{of}"),
        ("attempts", entry.attempts),
        ("next attempt", entry.next_attempt_at and moment(entry.next_attempt_at)),
        ("error", entry.error),
        *((f"header {name}", str(value)) for name, value in redact_value("", facts["headers"]).items()),
        *(("by hand", f"{moment(act['at'])} {act['act']} by {act['who']}: {act['reason']}") for act in seen.audit),
    ])  # fmt: skip
    if facts["payload"] is not None:
        yield output.readable(facts["payload"])
    yield ""


for _act in (replay, discard, rebase, outbox_rows.check, outbox_rows.resolve):
    command.add_command(_act)
