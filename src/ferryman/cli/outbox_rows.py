"""`ferryman outbox ... --outbox NAME`: the same commands on the rows of a described table, and `outbox check`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import click

from ferryman.cli import options, output, wiring
from ferryman.cli.options import Order
from ferryman.cli.output import CommandResult, answering, counted, nothing_changed
from ferryman.relay.admin import described_rows, row_facts, row_story, table_check
from ferryman.relay.admin.described_rows import DELIVERED, DISCARDABLE, HELD, LOST, SENDING, RowDesk, RowSelection
from ferryman.relay.admin.row_story import RowFacts
from ferryman.runtime.desk import Row
from ferryman.runtime.errors import Exit, FerrymanError
from ferryman.runtime.times import moment, span

_COUNTS = ("pending", "retrying", "sending", "lost", "failed", "held")
_JOURNALS = ("topic", "rate", "wait", "resume")
_HASH_CHARACTERS = 16
"""Enough of a hash to see whether two attempts sent the same; the JSON has all of it."""
_LISTED = ("id", "destination", "key", "type", "status", "state", "attempts", "next_attempt_at", "error", "created_at",
           "claimed_at", "done_at", "reference")  # fmt: skip


@click.command("check", short_help="Whether a described table fits, and what would mend it.")
@click.argument("name", metavar="NAME")
@options.source_option
@answering
@click.pass_context
def check(context: click.Context, name: str, source: str | None) -> CommandResult:
    """Check a described outbox: its settings and its channel, then its table's columns, types, words, rights, indexes.

    \b
      ferryman outbox check hooks
      ferryman outbox check shop.hooks:hooks

    NAME is that of [outbox.NAME], or the module:object of a courier. One line for each flaw, with the DDL that mends
    it; exit 1 if there is any. A wrong setting, a class of yours that is not a channel, or a database that is not
    migrated exits 3. Rights are those of the login that the command runs under: run it under the courier's.
    A start refuses all of this, except for missing indexes, of which it warns, and for constraints: it tries until
    they are mended.
    """
    wiring.check_courier(name, wiring.settings(context))
    with options.open_named(context, name, source) as (desk, named):
        flaws = table_check.examine(desk.connection, named.name, named.outbox)
    lines = [f"{flaw.why}\n  {flaw.ddl}" for flaw in flaws]
    data = {"outbox": named.name, "table": named.outbox.table, "fits": not flaws,
            "flaws": [flaw._asdict() for flaw in flaws]}  # fmt: skip
    fits = f"{named.outbox.table} fits its description, and indexes serve its claims"
    return CommandResult(data, lines or [fits], Exit.FAILURE if flaws else Exit.OK)


def stats(rows: RowDesk) -> CommandResult:
    """Return how much waits in the outbox, for how long, and what holds it up."""
    found = row_facts.statistics(rows)
    data = {**found, "paused": [output.with_iso_times(each) for each in found["paused"]]}
    return CommandResult(data, _stats_lines(rows, found))


def _stats_lines(rows: RowDesk, found: Row) -> Iterator[str]:
    if any(found[name] for name in _COUNTS):
        every = [*found["destinations"], *([{"destination": "all", **found}] if len(found["destinations"]) > 1 else [])]
        yield output.table(
            ("topic" if rows.by_kafka else "destination", "pending", "oldest", *_COUNTS[1:]), map(_counts, every)
        )
        if found["due"]:
            age = found["oldest_due_age_seconds"]  # without created_at nobody knows
            yield f"{_rows(found['due'])} due" + ("" if age is None else f"; the oldest was written {span(age)} ago")
    else:
        yield "nothing waits: no row is pending, being sent or given up"
    yield from (_paused_line(rows.called, each) for each in found["paused"])
    if not found["couriers"]:
        run = row_story.run_command(rows.called, by_kafka=rows.by_kafka)
        yield f"nobody delivers this outbox: no process is connected for it ({run})"


def _counts(each: Row) -> tuple[str, ...]:
    age = each["oldest_age_seconds"]
    pending, *others = (f"{each[name]:,}" for name in _COUNTS)
    return each["destination"] or "-", pending, "-" if age is None else span(age), *others


def _paused_line(called: str, each: Row) -> str:
    place = f" --destination {each['destination']}" if each["destination"] else ""
    what = f"destination {each['destination']}" if place else "the whole outbox"
    return f"{output.paused_line(what, each)} (ferryman resume --outbox {called}{place})"


def listed(rows: RowDesk, *, limit: int, after: str | None, **asked: Any) -> CommandResult:
    """Return rows by the time at which they were written."""
    found, further = described_rows.page(rows, selection_of(rows, asked), after=after, limit=limit)
    data = {"rows": [_as_dict(each) for each in found], "next": further}
    return CommandResult(data, _page_lines(found), more=f"there are more: --after {further}" if further else None)


def _page_lines(found: list[Row]) -> Iterator[str]:
    if not found:
        yield "no rows"
        return
    yield output.table(
        ("id", "destination", "status", "state", "attempts", "written", "next attempt", "error"),
        [
            (each["id"], each["destination"] or "", each["status"], each["state"], str(each["attempts"]),
             _time(each["created_at"]), _time(each["next_attempt_at"]), output.shortened(each["error"] or ""))
            for each in found
        ],
    )  # fmt: skip


def _time(at: Any) -> str:
    return moment(at) if at else ""


def _as_dict(row: Row) -> Row:
    return output.with_iso_times({name: row[name] for name in _LISTED})


def shown(rows: RowDesk, identity: str, *, payload: bool) -> CommandResult:
    """Return a row's whole story."""
    known = row_story.look(rows, identity)
    story = row_story.explain(known)
    content = described_rows.payload(described_rows.holding(rows, identity), known.row["id"]) if payload else None
    acts = [{name: act[name] for name in ("at", "act", "who", "reason", "entries")} for act in known.acts]
    data = {
        **_as_dict(known.row), "reason": story.reason, "next": story.next,
        "history": [output.with_iso_times(each) for each in known.history],
        "audit": [output.with_iso_times(act) for act in acts],
    }  # fmt: skip
    if payload:
        data["payload"], data["payload_base64"] = output.decoded(content)
    lines = [*output.story_lines(story), *_shown_lines(known), *([output.readable(content)] if payload else [])]
    return CommandResult(data, lines)


def _shown_lines(known: RowFacts) -> Iterator[str]:
    row = known.row
    yield from output.named_lines([
        ("id", row["id"]),
        ("destination", row["destination"]),
        ("key", row["key"]),
        ("type", row["type"]),
        ("written", _time(row["created_at"])),
        ("claimed", _time(row["claimed_at"])),
        ("attempts", row["attempts"]),
        ("next attempt", _time(row["next_attempt_at"])),
        ("delivered", _time(row["done_at"])),
        ("reference", row["reference"]),
        ("error", row["error"]),
        *(("by hand", f"{moment(act['at'])} {act['act']} by {act['who']}: {act['reason']}") for act in known.acts),
    ])  # fmt: skip
    if known.history:
        yield output.table(
            ("attempt", "took", "outcome", "code", "error", "reference", "answer", "hash"),
            [
                (moment(each["began_at"]), _took(each),
                 *(each[name] or "" for name in ("outcome", "code", "error", "reference", "excerpt")),
                 (each["content"] or "")[:_HASH_CHARACTERS])
                for each in known.history
            ],
        )  # fmt: skip
    elif row["attempts"] and row["state"] not in (SENDING, LOST):
        yield "its attempts are not recorded, or no longer"


def _took(attempt: Row) -> str:
    """Return how long an attempt took, if it has ended."""
    return f"{(attempt['ended_at'] - attempt['began_at']).total_seconds():.1f} s" if attempt["ended_at"] else ""


def selection_of(rows: RowDesk, asked: Mapping[str, Any]) -> RowSelection:
    """Return the selection that was asked for; refuse conditions that the table has no column for."""
    if asked.get("topic") is not None:
        raise click.UsageError("--topic is of the journal: with --outbox say --destination")
    if unread := [name for name in sorted(rows.unread) if asked[name] is not None]:
        raise click.UsageError(f"--{unread[0]}: this login may not read it; use one that delivers {rows.called}")
    for name, role in (("key", "key"), ("since", "created_at"), ("until", "created_at")):
        if asked[name] is not None and not rows.layout.has(role):
            raise click.UsageError(f"the rows of {rows.called} cannot be chosen so: they have no {role}")
    words = {word.casefold(): word for word in rows.outbox.words.every}
    if unknown := [each for each in asked["statuses"] if each.casefold() not in words]:
        raise click.UsageError(
            f"--status: {', '.join(unknown)} is not a word of {rows.called}: {', '.join(words.values())}"
        )
    return RowSelection(
        ids=tuple(asked.get("references") or ()) or None,
        statuses=tuple(words[each.casefold()] for each in asked["statuses"]) or None,
        **{name: asked[name] for name in ("destination", "key", "type")},
        **options.period(rows.desk, asked),
    )


def _chosen(rows: RowDesk, asked: Mapping[str, Any]) -> tuple[RowSelection, dict[str, int]]:
    """Return what an act selects, with the ids as the table writes them, and the rows by state."""
    if given := [name for name in _JOURNALS if asked.get(name)]:
        raise click.UsageError(f"{', '.join(f'--{name}' for name in given)}: not with --outbox")
    selection = selection_of(rows, asked)
    if selection.ids is not None:
        found = described_rows.at_ids(rows, selection.ids)
        selection = replace(selection, ids=tuple(each["id"] for each in found))
    return selection, described_rows.count(rows, selection)


def replay(order: Order, asked: Mapping[str, Any]) -> CommandResult:
    """Let rows be sent as if they had never failed, or say which."""
    with order.rows() as rows:
        selection, counts = _chosen(rows, asked)
        chosen, left = _parted(counts, described_rows.replayable(selection))
        if selection.ids and not chosen and left.get(DELIVERED):
            raise FerrymanError(
                "it was delivered: a delivered row is never sent again", remedy="write a new row, with an id of its own"
            )
        if selection.ids and not chosen and left.get(HELD):
            raise FerrymanError(
                "it may have been delivered, and is held for you to decide",
                remedy=f"ferryman outbox resolve {rows.called} --id {selection.ids[0]} --sent | --resend",
            )
        if not order.yes or not chosen:
            return _planned(order, "send", chosen, left)
        done = _summed(described_rows.replay(rows, selection, order.act))
        run = row_story.run_command(rows.called, by_kafka=rows.by_kafka)
    data = {"dry_run": False, "rows": done, "skipped": left}
    return CommandResult(data, [f"{_rows(done)} due now, with all attempts{_left(left)}; {run} sends {_them(done)}"])


def discard(order: Order, asked: Mapping[str, Any]) -> CommandResult:
    """Give rows up, or say which."""
    with order.rows() as rows:
        if rows.outbox.words.dead is None:
            raise FerrymanError(
                f"the outbox {rows.called} has no word for rows that are given up",
                remedy=f"name one that its table allows: outbox.{rows.name}.words.dead; or delete the row yourself",
            )
        selection, counts = _chosen(rows, asked)
        chosen, left = _parted(counts, DISCARDABLE)
        if selection.ids and left.get(DELIVERED):
            raise FerrymanError("it was delivered, and cannot be discarded", remedy="send something that takes it back")
        if selection.ids and left.get(SENDING):
            raise FerrymanError(
                "it is being sent, and cannot be discarded now",
                remedy=f"wait until that ends; `ferryman pause --outbox {rows.called}` lets no other attempt begin",
            )
        if not order.yes or not chosen:
            return _planned(order, "discard", chosen, left)
        done = _summed(described_rows.discard(rows, selection, order.act))
    data = {"dry_run": False, "rows": done, "skipped": left}
    return CommandResult(data, [f"{_rows(done)} discarded, and not sent{_left(left)}"])


@click.command("resolve", short_help="Decide on rows that may have been delivered.")
@click.argument("name", metavar="NAME")
@click.option("--id", "references", multiple=True, required=True, metavar="ID", help="This row; may be given again.")
@click.option("--sent/--resend", "sent", default=None, help="It was delivered, or it is to be sent again.")
@options.act_options
def resolve(order: Order, *, name: str, references: tuple[str, ...], sent: bool | None) -> CommandResult:
    """Decide on rows that are held, because they may have been delivered and the channel cannot find out.

    \b
      ferryman outbox list --outbox memos --status FAILED
      ferryman outbox resolve memos --id 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11 --sent
      ferryman outbox resolve memos --id 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11 --sent --yes --reason 'it has arrived'
      ferryman outbox resolve memos --id 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11 --resend --yes --reason 'no log has it'

    NAME is that of [outbox.NAME], or the module:object of a courier. Without --yes nothing is changed. With --sent the
    row is settled as delivered; with --resend it is due at once, with all its attempts. Both are recorded in the audit
    and in the row's attempts.
    """
    if sent is None:
        raise click.UsageError("say --sent or --resend")
    with options.open_rows(order.context, name, order.source) as rows:
        found = described_rows.at_ids(rows, references)
        if others := [f"{each['id']} is {each['state']}" for each in found if each["state"] != HELD]:
            raise FerrymanError(f"only held rows are resolved: {', '.join(others)}",
                                remedy=f"`ferryman outbox show --outbox {rows.called} ID` says more")  # fmt: skip
        if not order.yes:
            return _planned(order, "settle as delivered" if sent else "send again", {HELD: len(found)}, {})
        selection = RowSelection(ids=tuple(each["id"] for each in found))
        done = _summed(described_rows.resolve(rows, selection, order.act, sent=sent))
        run = row_story.run_command(rows.called, by_kafka=rows.by_kafka)
    told = "settled as delivered" if sent else f"due again; {run} sends {_them(done)}"
    return CommandResult({"dry_run": False, "rows": done, "sent": sent}, [f"{_rows(done)} {told}"])


def _summed(chunks: Iterator[int]) -> int:
    """Return the sum of the chunks; if a failure stops them, say how far they came."""
    done = 0
    with options.resumable(lambda: f"{_rows(done)} changed; run the same command again to continue"):
        for each in chunks:
            done += each
    return done


def _parted(counts: Mapping[str, int], states: tuple[str, ...]) -> tuple[dict[str, int], dict[str, int]]:
    """Part the counts into those of these states and the others."""
    chosen = {state: count for state, count in counts.items() if state in states}
    return chosen, {state: count for state, count in counts.items() if state not in states}


def _planned(order: Order, what: str, chosen: Mapping[str, int], left: Mapping[str, int]) -> CommandResult:
    total = sum(chosen.values())
    data = {"dry_run": not order.yes, "rows": total, "by_state": chosen, "skipped": left}
    said = f"would {what} {_rows(total)}{counted(chosen)}{_left(left)}"
    return CommandResult(data, [said, nothing_changed(total)])


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _left(skipped: Mapping[str, int]) -> str:
    return f"; left as they are: {sum(skipped.values()):,}{counted(skipped)}" if skipped else ""
