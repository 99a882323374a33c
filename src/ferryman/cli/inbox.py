"""`ferryman inbox`: shows what consumers handled and what they could not."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import click

from ferryman.cli import output
from ferryman.cli.inbox_acts import discard, rebase, requeue
from ferryman.cli.options import DURATION, MESSAGE_REFERENCE, ParsedType, period, reading
from ferryman.cli.output import CommandResult
from ferryman.consumer.admin import messages
from ferryman.consumer.admin.message_story import MessageView, look, place_of, results
from ferryman.consumer.admin.messages import COUNTED, STATUSES, UNSETTLED, MessageFilter, MessagePage
from ferryman.consumer.store.lookup import Cursor
from ferryman.consumer.store.rejected import Place, written
from ferryman.consumer.wire import headers_from_base64
from ferryman.runtime.desk import Desk, Row
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.redaction import redact_value
from ferryman.runtime.times import moment, span

SEARCH_SECONDS = 10.0
_RECEIPT = ("status", "outcome", "reason", "type", "topic", "partition", "offset", "received_at", "error")
_RECORD = ("topic", "partition", "offset", "type", "code", "error", "status", "value_bytes", "who", "rejected_at",
           "changed_at", "reason")  # fmt: skip

consumer_option = click.option("--consumer", metavar="NAME", help="Only this consumer.")


@click.group("inbox")
def command() -> None:
    """Look at the messages of consumers; requeue or discard rejected ones.

    \b
      ferryman inbox stats                          each consumer: verdicts, rejected messages, processes
      ferryman inbox list                           messages that were rejected, or never took effect
      ferryman inbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11
      ferryman inbox show orders/2/4711             by topic, partition and offset
      ferryman inbox requeue --code BUG             what a requeue would do; --yes does it
      ferryman inbox discard --id orders/2/4711 --yes --reason 'test data'
      ferryman inbox rebase --consumer wallet       begin at Kafka's offsets, whatever this database knows

    A message has one verdict per consumer: HANDLED (DONE: it took effect; REFUSED: it must not) or REJECTED (it could
    not be handled, and its record is kept). REOPENED messages were requeued and will be handled again. RECEIVED is used
    by consumers that handle at most once: a message that stays RECEIVED had no effect. Values are printed only by
    `show --payload`.
    """


@command.command("stats", short_help="Show each consumer's verdicts, rejected messages and processes.")
@consumer_option
@reading("by hand")
def stats(desk: Desk, *, consumer: str | None) -> CommandResult:
    """Show the statistics of each consumer: verdicts, rejected messages that wait for a person, and partitions.

    \b
      ferryman inbox stats
      ferryman inbox stats --consumer wallet --json | jq '.consumers[0].rejected_waiting'

    DONE and REFUSED count the receipts that are kept: up to 20,000 exactly, beyond that by the database's statistics,
    marked with ~. Everything else is counted. A partition is unclean if its last owner did not release it, as after
    kill -9: the next owner marks its batches.
    """
    with desk.reading() as connection:
        found = messages.statistics(connection, consumer)
    return CommandResult({"consumers": found, "counted_up_to": COUNTED}, _stats_lines(found))


def _stats_lines(found: list[Row]) -> Iterator[str]:
    if not found:
        yield "no consumer has run on this database"
        return
    yield output.table(
        ("consumer", "processes", "DONE", "REFUSED", "REJECTED", "RECEIVED", "REOPENED", "waits for a person", "oldest",
         "partitions"),
        [_consumer(each) for each in found],
    )  # fmt: skip
    for each in found:
        name = each["consumer"]
        for code, count in each["rejected_waiting"]["by_code"].items():
            yield f"rejected: {name}, {count:,} with {code} (ferryman inbox list --consumer {name} --code {code})"
        for place in each["partitions"]["begun_again"]:
            yield f"suspect: {name}, {place_of(place)} was begun alone {place['starts']} times without an end"
        if pause := each["paused"]:
            yield f"{output.paused_line(name, pause)} (ferryman resume {name} --consumer)"


def _consumer(each: Row) -> tuple[str, ...]:
    verdicts, waiting, partitions = each["verdicts"], each["rejected_waiting"], each["partitions"]
    about = "~" if each["estimated"] else ""
    age = waiting["oldest_age_seconds"]
    said = [f"{partitions[name]} {name}" for name in ("owned", "unclean", "released") if partitions[name]]
    return (
        each["consumer"], str(each["processes"]), f"{about}{verdicts['DONE']:,}", f"{about}{verdicts['REFUSED']:,}",
        *(f"{verdicts[name]:,}" for name in UNSETTLED), f"{waiting['messages']:,}",
        span(age) if age is not None else "-", ", ".join(said) or "-",
    )  # fmt: skip


def _cursor_of(text: str) -> Cursor:
    at, consumer, place = text.split("/", 2)
    topic, partition, offset, identity = place.rsplit("/", 3)
    return datetime.fromisoformat(at), consumer, topic, int(partition), int(offset), UUID(identity)


@command.command("list", short_help="Messages that were rejected, or never took effect.")
@consumer_option
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES, case_sensitive=False),
              metavar="STATUS", default=UNSETTLED, show_default=False,
              help=f"Only messages with this status ({', '.join(STATUSES)}); may be repeated. "
              f"Default: {', '.join(UNSETTLED)}.")  # fmt: skip
@click.option("--code", metavar="CODE", help="Only messages rejected with this code: BUG, UNREADABLE, KILLER, ...")
@click.option("--topic", metavar="TOPIC", help="Only messages of this topic.")
@click.option("--type", metavar="TYPE", help="Only messages of this type.")
@click.option("--older-than", "until", type=DURATION, help="Only messages older than this: 90s, 15m, 2h, 3d.")
@click.option("--younger-than", "since", type=DURATION, help="Only messages younger than this.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Print at most this many.")
@click.option("--before", type=ParsedType("next", _cursor_of, "not the `next` of a page"), metavar="NEXT",
              help="Continue with the `next` of the previous page.")  # fmt: skip
@reading("by hand")
def list_messages(desk: Desk, *, limit: int, before: Cursor | None, code: str | None, **asked: Any) -> CommandResult:
    """List rejected messages and unusual receipts, newest first, without values.

    \b
      ferryman inbox list
      ferryman inbox list --consumer wallet --code BUG
      ferryman inbox list --status REQUEUED --younger-than 1d     requeued messages, and what became of them
      ferryman inbox list --older-than 3d --limit 500 --json

    REJECTED messages could not be handled, and wait for a person. RECEIVED is used by consumers that handle at most
    once: a message that stays RECEIVED had no effect. REOPENED messages are requeued and not handled yet. REQUEUED and
    DISCARDED are rejected messages that somebody has decided about; their verdict says what became of them.
    """
    wanted = MessageFilter(code=code.upper() if code else None, **asked | period(desk, asked))
    page = messages.page(desk, wanted, before=before, limit=limit)
    following = page.next and "/".join([page.next[0].isoformat(), *map(str, page.next[1:])])
    data = {"messages": [output.with_iso_times(each) for each in page.messages], "next": following}
    return CommandResult(data, _page_lines(page), more=following and f"there are more: --before {following}")


def _page_lines(page: MessagePage) -> Iterator[str]:
    if not page.messages:
        yield "no messages"
        return
    yield output.table(
        ("consumer", "place", "id", "type", "status", "verdict", "code", "since", "error"),
        [
            (each["consumer"], place_of(each), str(each["id"]), each["type"], each["status"], each["verdict"] or "-",
             each["code"] or "", moment(each["at"]), output.shortened(each["error"] or ""))
            for each in page.messages
        ],
    )  # fmt: skip


@command.command("show", short_help="Show one message's story: what became of it, and why.")
@click.argument("reference", type=MESSAGE_REFERENCE, metavar="ID|TOPIC/PARTITION/OFFSET")
@consumer_option
@click.option("--payload", is_flag=True, help="Print rejected values too: they may hold personal data or secrets.")
@reading("by hand")
def show(desk: Desk, *, reference: UUID | Place, consumer: str | None, payload: bool) -> CommandResult:
    """Show a message's whole story: when it came, its verdict and why, its reports, and the command to run next.

    \b
      ferryman inbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11
      ferryman inbox show orders/2/4711
      ferryman inbox show orders/2/4711 --consumer wallet --payload

    Ids are found at once, and so are the places of rejected messages. There is no index on the places of others, since
    every batch would pay for it: the newest receipts are searched first, for 10 seconds. Only the first of several
    duplicates has a receipt. If several consumers know the message, each story is shown. The values of headers whose
    names say that they are secret are masked.
    """
    found = look(desk, reference, consumer, payload=payload, seconds=SEARCH_SECONDS)
    if not found.seen:
        raise _nothing(reference, complete=found.complete)
    data = {"messages": [_as_dict(each) for each in found.seen], "complete": found.complete}
    lines = (line for each in found.seen for line in _shown_lines(each))
    stopped = f"searched for {SEARCH_SECONDS:.0f} s; older receipts of this place are not shown"
    return CommandResult(data, lines, stopped=None if found.complete else stopped)


def _nothing(reference: UUID | Place, *, complete: bool) -> FerrymanError:
    name = str(reference) if isinstance(reference, UUID) else written(reference)
    if not complete:
        return FerrymanError(
            f"no receipt of {name} among the newest, in a search of {SEARCH_SECONDS:.0f} s",
            remedy="name its id instead: its header ce_id, if that is a UUID",
        )
    return FerrymanError(
        f"no consumer here knows {name}",
        remedy="it may not have come yet (`ferryman inbox stats`), have a type without a handler, be a duplicate of "
        "another place, be older than consumer.receipts_retention_seconds, or have another id, if its consumer sets "
        "id_from: name it by TOPIC/PARTITION/OFFSET; `ferryman trace` knows it by its ce_id",
    )


def _as_dict(seen: MessageView) -> dict[str, Any]:
    receipt, known = seen.known.receipt, seen.known
    rejected = [_record(each) for each in known.records]
    for record, value in zip(rejected, seen.values, strict=False):
        record["value"], record["value_base64"] = output.decoded(value)
    return {
        "consumer": known.consumer,
        "reason": seen.story.reason,
        "next": seen.story.next,
        "id": (receipt or known.records[0])["id"],
        "receipt": receipt
        and output.with_iso_times({name: receipt[name] for name in _RECEIPT}) | {"results": results(receipt)},
        "rejected": rejected,
    }


def _record(record: Row) -> dict[str, Any]:
    key, key_base64 = output.decoded(record["key"])
    shown = output.with_iso_times({name: record[name] for name in _RECORD})
    return {**shown, "key": key, "key_base64": key_base64, "headers": _headers(record)}


def _headers(record: Row) -> list[dict[str, Any]]:
    shown = []
    for name, raw in headers_from_base64(record["headers"]):
        text, encoded = output.decoded(raw)
        shown.append({"name": name, "value": redact_value(name, text), "value_base64": redact_value(name, encoded)})
    return shown


def _shown_lines(seen: MessageView) -> Iterator[str]:
    yield from output.story_lines(seen.story)
    yield from output.named_lines([("consumer", seen.known.consumer)])
    if seen.known.receipt:
        yield from output.named_lines(_receipt_values(seen.known.receipt))
    for number, record in enumerate(seen.known.records):
        yield from output.named_lines(_record_values(record))
        if seen.values:
            yield output.readable(seen.values[number])
    yield ""


def _receipt_values(receipt: Row) -> Iterator[tuple[str, Any]]:
    yield "id", receipt["id"]
    yield "type", receipt["type"]
    yield "came", f"{moment(receipt['received_at'])}, from {place_of(receipt)}"
    outcome = f" {receipt['outcome']}" if receipt["outcome"] else ""
    reason = f" ({receipt['reason']})" if receipt["reason"] else ""
    yield "verdict", f"{receipt['status']}{outcome}{reason}"
    yield "error", receipt["error"]
    for each in results(receipt):
        yield "reported", f"{each['type']} to {each['topic']} with key {each['key']}, id {each['id']}"


def _record_values(record: Row) -> Iterator[tuple[str, Any]]:
    size = "no value" if record["value_bytes"] is None else f"{record['value_bytes']:,} bytes"
    yield "rejected", f"{moment(record['rejected_at'])}, from {place_of(record)}: {record['code']}, {size}"
    yield "", record["error"]
    if record["changed_at"]:
        yield "by hand", f"{moment(record['changed_at'])} {record['status']} by {record['who']}: {record['reason']}"
    yield "key", output.readable(record["key"], mark=" (base64)")
    for each in _headers(record):
        yield f"header {each['name']}", each["value"] or (each["value_base64"] and f"{each['value_base64']} (base64)")


for _act in (requeue, discard, rebase):
    command.add_command(_act)
