"""`ferryman outbox list`"""

from datetime import timedelta
from typing import Any

import click

from ferryman.cli.options import DurationType, source_option
from ferryman.cli.outbox_options import filter_options, moment_of, open_desk
from ferryman.cli.output import json_option, print_json, print_table, say
from ferryman.relay.operator import listing
from ferryman.relay.operator.listing import Page
from ferryman.relay.operator.selection import STATUSES, Selection
from ferryman.relay.store.listing import Listed
from ferryman.runtime.exits import Exit
from ferryman.runtime.times import moment

_SECONDS = 5.0
_ERROR_CHARACTERS = 60


@click.command("list", short_help="Entries with their status, by position.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES, case_sensitive=False),
              metavar="STATUS", help=f"Only with this status ({', '.join(STATUSES)}); may be given again.")  # fmt: skip
@filter_options
@click.option("--older-than", type=DurationType(), help="Only what was appended longer ago: 90s, 15m, 2h, 3d.")
@click.option("--younger-than", type=DurationType(), help="Only what was appended since then.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The most to print.")
@click.option("--after", type=click.IntRange(0, 2**63 - 1), default=0, metavar="POSITION",
              help="Go on behind this position: the `next` of the page before.")  # fmt: skip
@source_option
@json_option
@click.pass_context
def command(
    context: click.Context, *, statuses: tuple[str, ...], topic: str | None, key: str | None, type_: str | None,
    older_than: timedelta | None, younger_than: timedelta | None, limit: int, after: int, source: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """List entries in the order of their positions, the oldest first; no payloads.

    \b
      ferryman outbox list --status FAILED
      ferryman outbox list --topic orders --key 4711
      ferryman outbox list --status PENDING --older-than 5m
      ferryman outbox list --younger-than 15m --limit 500 --json

    Statuses other than PUBLISHED are found at once, however much is retained. For a topic, key or type among published
    entries it looks for some seconds; then it exits 5 and says where to go on.
    """
    with open_desk(context, source) as desk:
        selection = Selection(
            topic=topic,
            key=key,
            type=type_,
            statuses=tuple(each.upper() for each in statuses) or None,
            since=moment_of(desk, younger_than),
            until=moment_of(desk, older_than),
        )
        page = listing.page(desk, selection, after=after, limit=limit, seconds=_SECONDS)
    if as_json:
        print_json({"entries": [as_dict(each) for each in page.entries], "next": page.next})
    else:
        _print(page)
    if not page.complete:
        say(f"looked for {_SECONDS:.0f} s, up to position {page.next}; there may be more: --after {page.next}")
        return Exit.PARTIAL
    return Exit.OK


def as_dict(entry: Listed) -> dict[str, Any]:
    """The entry as machines read it."""
    return {
        "id": str(entry.id),
        "position": entry.position,
        "topic": entry.topic,
        "key": entry.key,
        "type": entry.type,
        "status": entry.status,
        "attempts": entry.attempts,
        "next_attempt_at": entry.next_attempt_at and entry.next_attempt_at.isoformat(),
        "error": entry.error,
        "created_at": entry.created_at.isoformat(),
        "lane": entry.lane,
        "payload_bytes": entry.payload_bytes,
    }


def _print(page: Page) -> None:
    if page.entries:
        print_table(
            ("position", "id", "topic", "key", "type", "status", "attempts", "created", "error"),
            [
                (str(each.position), str(each.id), each.topic, each.key, each.type, each.status, str(each.attempts),
                 moment(each.created_at), _shortened(each.error or ""))
                for each in page.entries
            ],
        )  # fmt: skip
    elif page.complete:
        click.echo("no entries")
    if page.complete and page.next is not None:
        say(f"there are more: --after {page.next}")


def _shortened(error: str) -> str:
    return error if len(error) <= _ERROR_CHARACTERS else error[: _ERROR_CHARACTERS - 1] + "…"
