"""`ferryman outbox show`"""

import base64
from datetime import timedelta
from typing import Any

import click

from ferryman.cli.options import DurationType, source_option
from ferryman.cli.outbox_list import as_dict
from ferryman.cli.outbox_options import SEARCH_SECONDS, Reference, ReferenceType, moment_of, open_desk
from ferryman.cli.output import json_option, print_json, say
from ferryman.relay.operator import listing
from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.looking import Seen, look
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.exits import Exit
from ferryman.runtime.redaction import redact_value
from ferryman.runtime.times import moment


@click.command("show", short_help="One entry's story: why it is where it is.")
@click.argument("reference", type=ReferenceType(), metavar="ID|POSITION")
@click.option("--payload", is_flag=True, help="Print the payload too: it may hold personal data or secrets.")
@click.option("--since", type=DurationType(), help="Look for an id only in what was appended since: 2h, 3d.")
@source_option
@json_option
@click.pass_context
def command(
    context: click.Context, *, reference: Reference, payload: bool, since: timedelta | None, source: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Tell an entry's whole story: what it is, why it is where it is, and the command to run next.

    \b
      ferryman outbox show 4711
      ferryman outbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11
      ferryman outbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11 --since 2h

    A position is found at once. Ids have no index, which would slow every writer down: the newest entries are looked
    through first, for 10 seconds (some ten million entries); --since shortens it. A writer may have used an id more
    than once: all are shown, the newest first. Values of headers whose names say that they are secret are masked.
    """
    with open_desk(context, source) as desk:
        positions, unseen = _positions(desk, reference, moment_of(desk, since))
        seen = [each for position in positions if (each := look(desk, position, payload=payload))]
    if not seen:
        raise _nothing(reference, unseen, since)
    if as_json:
        print_json({"entries": [_as_dict(each) for each in seen], "complete": unseen is None})
    else:
        for each in seen:
            _print(each)
    if unseen is not None:
        say(f"looked for {SEARCH_SECONDS:.0f} s, down to position {unseen}; older ones with this id are not shown")
        return Exit.PARTIAL
    return Exit.OK


def _positions(desk: Desk, reference: Reference, since: Any) -> tuple[list[int], int | None]:
    if isinstance(reference, int):
        return [reference], None
    return listing.find(desk, [reference], since=since, seconds=SEARCH_SECONDS)


def _nothing(reference: Reference, unseen: int | None, since: timedelta | None) -> FerrymanError:
    if unseen is not None:
        return FerrymanError(
            f"no entry {reference} above position {unseen}; it took {SEARCH_SECONDS:.0f} s to look so far",
            remedy="name its position instead: `ferryman outbox list --topic ... --key ...` finds it",
        )
    if since is not None:
        return FerrymanError(f"no entry {reference} since then", remedy="look further back, or leave --since out")
    return FerrymanError(
        f"the outbox has no entry {reference}",
        remedy="its transaction may not have committed; what is older than the retention is gone for good",
    )


def _as_dict(seen: Seen) -> dict[str, Any]:
    entry = seen.entry
    told: dict[str, Any] = {
        **as_dict(entry),
        "segment": entry.segment,
        "content_type": seen.content_type,
        "headers": redact_value("", seen.headers),
        "replay": entry.replay,
        "changed_at": entry.changed_at and entry.changed_at.isoformat(),
        "reason": seen.story.reason,
        "next": seen.story.next,
        "audit": [
            {"at": act["at"].isoformat(), **{name: act[name] for name in ("act", "who", "reason", "entries")}}
            for act in seen.story.audit
        ],
    }
    if seen.payload is not None:
        text = _text(seen.payload)
        told["payload"] = text
        told["payload_base64"] = None if text is not None else base64.b64encode(seen.payload).decode()
    return told


def _print(seen: Seen) -> None:
    entry = seen.entry
    click.echo(click.style(seen.story.reason, bold=True))
    if seen.story.next:
        click.echo(f"next: {seen.story.next}\n")
    rows = {
        "id": str(entry.id),
        "position": f"{entry.position} (lane {entry.lane}, segment {entry.segment})",
        "topic": entry.topic,
        "key": entry.key,
        "type": entry.type,
        "appended": moment(entry.created_at),
        "payload": f"{entry.payload_bytes:,} bytes" + (f" of {seen.content_type}" if seen.content_type else ""),
        "attempts": str(entry.attempts) if entry.attempts else "",
        "next attempt": moment(entry.next_attempt_at) if entry.next_attempt_at else "",
        "error": entry.error or "",
    }
    headers = {f"header {name}": str(value) for name, value in redact_value("", seen.headers).items()}
    for name, value in (rows | headers).items():
        if value:
            click.echo(f"  {name:<14} {value}")
    for act in seen.story.audit:
        click.echo(f"  {'by hand':<14} {moment(act['at'])} {act['act']} by {act['who']}: {act['reason']}")
    if seen.payload is not None:
        text = _text(seen.payload)
        click.echo(text if text is not None else base64.b64encode(seen.payload).decode())
    click.echo("")


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return None
