"""`ferryman inbox show`"""

import base64
from typing import Any

import click

from ferryman.cli.inbox_options import Reference, ReferenceType, consumer_option, open_desk
from ferryman.cli.options import source_option
from ferryman.cli.output import json_option, print_json, say
from ferryman.consumer.operator.again import decoded
from ferryman.consumer.operator.looking import Seen, look
from ferryman.consumer.operator.selection import written
from ferryman.consumer.operator.story import Row, results
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.exits import Exit
from ferryman.runtime.redaction import redact_value
from ferryman.runtime.times import moment

SEARCH_SECONDS = 10.0


@click.command("show", short_help="One message's story: what became of it, and why.")
@click.argument("reference", type=ReferenceType(), metavar="ID|TOPIC/PARTITION/OFFSET")
@consumer_option
@click.option("--payload", is_flag=True, help="Print rejected values too: they may hold personal data or secrets.")
@source_option
@json_option
@click.pass_context
def command(
    context: click.Context, *, reference: Reference, consumer: str | None, payload: bool, source: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Tell a message's whole story: when it came, its verdict and why, what was reported, and the command to run next.

    \b
      ferryman inbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11
      ferryman inbox show orders/2/4711
      ferryman inbox show orders/2/4711 --consumer wallet --payload

    An id is found at once, and so is the place of what was rejected. Places of other messages have no index, which
    every batch would pay for: the newest receipts are looked through first, for 10 seconds; of duplicates only the
    first has a receipt. Several consumers may know a message: each tells its own story. Values of headers whose names
    say that they are secret are masked.
    """
    with open_desk(context, source) as desk:
        found = look(desk, reference, consumer, payload=payload, seconds=SEARCH_SECONDS)
    if not found.seen:
        raise _nothing(reference, complete=found.complete)
    if as_json:
        print_json({"messages": [_as_dict(each) for each in found.seen], "complete": found.complete})
    else:
        for each in found.seen:
            _print(each)
    if not found.complete:
        say(f"looked for {SEARCH_SECONDS:.0f} s; older receipts of this place are not shown")
        return Exit.PARTIAL
    return Exit.OK


def _nothing(reference: Reference, *, complete: bool) -> FerrymanError:
    name = written(reference) if isinstance(reference, tuple) else str(reference)
    if not complete:
        return FerrymanError(
            f"no receipt of {name} among the newest; it took {SEARCH_SECONDS:.0f} s to look so far",
            remedy="name its id instead: its header ce_id, where that is a uuid",
        )
    return FerrymanError(
        f"no consumer here knows {name}",
        remedy="it may not have come yet (`ferryman inbox stats`), be of a type without a handler, be a duplicate of "
        "another place, or be older than consumer.receipts_retention_seconds",
    )


def _as_dict(seen: Seen) -> dict[str, Any]:
    receipt, known = seen.known.receipt, seen.known
    told: dict[str, Any] = {"consumer": known.consumer, "reason": seen.story.reason, "next": seen.story.next}
    told["id"] = str((receipt or known.records[0])["id"])
    told["receipt"] = receipt and {
        **{name: receipt[name] for name in ("status", "outcome", "reason", "type", "topic", "partition", "offset")},
        "received_at": receipt["received_at"].isoformat(),
        "error": receipt["error"],
        "results": results(receipt),
    }
    told["rejected"] = [_record(each) for each in known.records]
    for record, value in zip(told["rejected"], seen.values, strict=False):
        record["value"], record["value_base64"] = _either(value)
    return told


def _record(record: Row) -> dict[str, Any]:
    names = ("topic", "partition", "offset", "type", "code", "error", "status", "value_bytes", "who")
    key, key_base64 = _either(record["key"])
    return {
        **{name: record[name] for name in names},
        "rejected_at": record["rejected_at"].isoformat(),
        "changed_at": record["changed_at"] and record["changed_at"].isoformat(),
        "reason": record["reason"],
        "key": key,
        "key_base64": key_base64,
        "headers": _headers(record),
    }


def _headers(record: Row) -> list[dict[str, Any]]:
    """As text where they are text."""
    shown = []
    for name, raw in decoded(record["headers"]):
        text, encoded = _either(raw)
        shown.append({"name": name, "value": redact_value(name, text), "value_base64": redact_value(name, encoded)})
    return shown


def _either(raw: bytes | None) -> tuple[str | None, str | None]:
    """Text, or base64 of what is no text."""
    if raw is None:
        return None, None
    try:
        return raw.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(raw).decode()


def _print(seen: Seen) -> None:
    known = seen.known
    click.echo(click.style(seen.story.reason, bold=True))
    if seen.story.next:
        click.echo(f"next: {seen.story.next}\n")
    _line("consumer", known.consumer)
    if receipt := known.receipt:
        _line("id", str(receipt["id"]))
        _line("type", receipt["type"])
        _line("came", f"{moment(receipt['received_at'])}, from {_place(receipt)}")
        outcome = f" {receipt['outcome']}" if receipt["outcome"] else ""
        reason = f" ({receipt['reason']})" if receipt["reason"] else ""
        _line("verdict", f"{receipt['status']}{outcome}{reason}")
        _line("error", receipt["error"])
        for each in results(receipt):
            _line("reported", f"{each['type']} to {each['topic']} with key {each['key']}, id {each['id']}")
    for number, record in enumerate(known.records):
        _print_record(record)
        if seen.values:
            text, encoded = _either(seen.values[number])
            click.echo(text if text is not None else encoded or "")
    click.echo("")


def _print_record(record: Row) -> None:
    size = "no value" if record["value_bytes"] is None else f"{record['value_bytes']:,} bytes"
    _line("rejected", f"{moment(record['rejected_at'])}, from {_place(record)}: {record['code']}, {size}")
    _line("", record["error"])
    if record["changed_at"]:
        said = f"{record['status']} by {record['who']}: {record['reason']}"
        _line("by hand", f"{moment(record['changed_at'])} {said}")
    text, encoded = _either(record["key"])
    _line("key", text if text is not None else encoded and f"{encoded} (base64)")
    for each in _headers(record):
        _line(f"header {each['name']}", each["value"] or (each["value_base64"] and f"{each['value_base64']} (base64)"))


def _line(name: str, value: Any) -> None:
    if value:
        click.echo(f"  {name:<14} {value}")


def _place(row: Row) -> str:
    return written((row["topic"], row["partition"], row["offset"]))
