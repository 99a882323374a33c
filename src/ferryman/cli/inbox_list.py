"""`ferryman inbox list`"""

from datetime import datetime, timedelta
from typing import Any

import click

from ferryman.cli.inbox_options import consumer_option, moment_of, open_desk
from ferryman.cli.options import DurationType, source_option
from ferryman.cli.output import json_option, print_json, print_table, say
from ferryman.consumer.operator import listing
from ferryman.consumer.operator.listing import STATUSES, UNSETTLED, Filter, Page
from ferryman.consumer.operator.selection import written
from ferryman.consumer.store.listing import Cursor, Listed
from ferryman.runtime.times import moment

_ERROR_CHARACTERS = 60


class CursorType(click.ParamType[Any]):
    """The `next` of a page"""

    name = "next"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            at, consumer, place = value.split("/", 2)
            topic, partition, offset = place.rsplit("/", 2)
            return datetime.fromisoformat(at), consumer, topic, int(partition), int(offset)
        except ValueError:
            self.fail(f"{value} is not the `next` of a page", param, ctx)


@click.command("list", short_help="What was rejected, and what never took effect.")
@consumer_option
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES, case_sensitive=False),
              metavar="STATUS", help=f"Only with this status ({', '.join(STATUSES)}); may be given again. "
              f"Default: {', '.join(UNSETTLED)}.")  # fmt: skip
@click.option("--code", metavar="CODE", help="Only what was rejected for this: BUG, UNREADABLE, KILLER, ...")
@click.option("--topic", metavar="TOPIC", help="Only messages that stood in this topic.")
@click.option("--type", "type_", metavar="TYPE", help="Only messages of this type.")
@click.option("--older-than", type=DurationType(), help="Only what came longer ago: 90s, 15m, 2h, 3d.")
@click.option("--younger-than", type=DurationType(), help="Only what came since then.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The most to print.")
@click.option("--before", type=CursorType(), metavar="NEXT", help="Go on with the `next` of the page before.")
@source_option
@json_option
@click.pass_context
def command(
    context: click.Context, *, consumer: str | None, statuses: tuple[str, ...], code: str | None, topic: str | None,
    type_: str | None, older_than: timedelta | None, younger_than: timedelta | None, limit: int,
    before: Cursor | None, source: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List rejected messages and unusual receipts, the newest first; no values.

    \b
      ferryman inbox list
      ferryman inbox list --consumer wallet --code BUG
      ferryman inbox list --status REQUEUED --younger-than 1d     what was requeued, and what became of it
      ferryman inbox list --older-than 3d --limit 500 --json

    REJECTED could not be handled, and waits for a person. RECEIVED is of a consumer that handles at most once: what
    stays so had no effect. REOPENED is requeued and not handled yet. REQUEUED and DISCARDED are the rejected ones that
    somebody has decided about; their verdict says what became of the message.
    """
    with open_desk(context, source) as desk:
        wanted = Filter(
            consumer=consumer,
            statuses=tuple(each.upper() for each in statuses) or UNSETTLED,
            code=code.upper() if code else None,
            topic=topic,
            type=type_,
            since=moment_of(desk, younger_than),
            until=moment_of(desk, older_than),
        )
        page = listing.page(desk, wanted, before=before, limit=limit)
    if as_json:
        print_json({"messages": [as_dict(each) for each in page.messages], "next": page.next and _cursor(page.next)})
    else:
        _print(page)


def as_dict(each: Listed) -> dict[str, Any]:
    """The message as machines read it."""
    return {
        "consumer": each.consumer,
        "id": str(each.id),
        "status": each.status,
        "verdict": each.verdict,
        "code": each.code,
        "error": each.error,
        "type": each.type,
        "topic": each.topic,
        "partition": each.partition,
        "offset": each.offset,
        "at": each.at.isoformat(),
        "value_bytes": each.value_bytes,
    }


def _cursor(place: Cursor) -> str:
    at, consumer, *where = place
    return "/".join(map(str, (at.isoformat(), consumer, *where)))


def _print(page: Page) -> None:
    if page.messages:
        print_table(
            ("consumer", "place", "id", "type", "status", "verdict", "code", "since", "error"),
            [
                (each.consumer, written(each.place), str(each.id), each.type, each.status, each.verdict or "-",
                 each.code or "", moment(each.at), _shortened(each.error or ""))
                for each in page.messages
            ],
        )  # fmt: skip
    else:
        click.echo("no messages")
    if page.next is not None:
        say(f"there are more: --before {_cursor(page.next)}")


def _shortened(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= _ERROR_CHARACTERS else line[: _ERROR_CHARACTERS - 1] + "…"
