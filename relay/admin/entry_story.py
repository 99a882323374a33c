"""Explains one entry: why it is where it is, and the command to run next."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ferryman.relay.admin import entries as status
from ferryman.relay.admin.entries import EntrySelection, at_positions
from ferryman.relay.policy import PAUSED
from ferryman.relay.store import backlog, operator_acts
from ferryman.relay.store.entry_views import ListedEntry
from ferryman.runtime.desk import WHOLE_OUTBOX, Desk, Row, Story, count_relays, paused_by, read_paused
from ferryman.runtime.times import moment, span

_MOST_ACTS = 500
_STATS = "ferryman outbox stats"

Explained = tuple[str, str | None]
"""The reason of a story after the status, and the command to run next (None: wait)."""


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """The facts that explain an entry: `store.backlog.facts`, what is paused, its replay, relays."""

    facts: Row
    paused: Sequence[Row] = ()
    replay: Row | None = None
    relays: int = 0


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An entry with its story, the acts that may have concerned it, and facts: headers, type, payload if asked for."""

    entry: ListedEntry
    story: Story
    audit: Sequence[Row]
    facts: Row


def look(desk: Desk, position: int, *, payload: bool = False) -> ShownEntry | None:
    """Return the entry at a position with everything that is known about it."""
    with desk.reading() as connection:
        found, facts = at_positions(connection, [position]), backlog.facts(connection, position, payload=payload)
        if not found or facts is None:
            return None
        entry = found[0]
        known = EntryFacts(
            facts=facts,
            paused=read_paused(connection, "topic"),
            replay=operator_acts.read_replay(connection, entry.replay) if entry.replay is not None else None,
            relays=count_relays(connection),
        )
        acts = concerning(entry, backlog.audit(connection, _MOST_ACTS))
    return ShownEntry(entry, explain(entry, known), acts, facts)


def explain(entry: ListedEntry, known: EntryFacts) -> Story:
    """Return the entry's story. Pure: everything that is known is passed."""
    reason, command = _explained(entry, known)
    return Story(f"{entry.status}{reason}", command)


def _explained(entry: ListedEntry, known: EntryFacts) -> Explained:
    position = entry.position
    match entry.status:
        case status.PENDING:
            said = _paused(entry, known) or _pending(known)
        case status.RETRYING:
            said = _paused(entry, known) or _retrying(entry, known.facts["now"])
        case status.PARKED:
            said = _paused(entry, known) or _parked(entry, known.facts)
        case status.REPLAYING:
            said = _paused(entry, known) or _replaying(known)
        case status.FAILED:
            tried = f" after {attempts(entry.attempts)}: {entry.error or 'no error was recorded'}"
            again = f"ferryman outbox replay --id {position}"
            said = tried, f"{again}   or   ferryman outbox discard --id {position}"
        case status.DISCARDED:
            since = f" by hand at {moment(entry.changed_at)}" if entry.changed_at else ""
            error = f"; it had failed with: {entry.error}" if entry.error else ""
            said = f"{since}: it is not published{error}", f"ferryman outbox replay --id {position}"
        case _:
            said = ": Kafka acknowledged it, and nothing is left to do", None
    return said


def _paused(entry: ListedEntry, known: EntryFacts) -> Explained | None:
    for each in known.paused:
        if each["topic"] in (WHOLE_OUTBOX, entry.topic):
            what = f"topic {entry.topic}" if each["topic"] else "the whole outbox"
            return f", and {what} is paused by {paused_by(each)}", f"ferryman resume {each['name']}"
    return None


def _pending(known: EntryFacts) -> Explained:
    facts = known.facts
    if not known.relays:
        return ": the relay has not read it yet, and no relay is connected to this database", "ferryman run relay"
    if facts["in_target"]:
        return ": the relay is reading the window that it is in", _STATS
    if facts["late"]:
        why = "its transaction committed after later positions were read; it goes first when the relay reads next"
        return f": {why}", _STATS
    ahead = facts["ahead"] - 1
    behind = f"; up to {ahead} positions are before it" if ahead > 0 else ""
    return f": its transaction committed after the last window; the relay has not read it yet{behind}", _STATS


def _retrying(entry: ListedEntry, now: datetime) -> Explained:
    failed = f"it failed {times(entry.attempts)}" if entry.attempts else "it waited, and was let go"
    error = f": {entry.error}" if entry.error else ""
    said = f": {failed}, and is tried again {when(entry.next_attempt_at, now)}{error}"
    return said, f"wait, or give it up: ferryman outbox discard --id {entry.position}"


def _parked(entry: ListedEntry, facts: Row) -> Explained:
    head = facts["head_position"]
    if facts["key_parked"] and head is not None:
        error = f": {facts['head_error']}" if facts["head_error"] else ""
        failed = f"failed {times(facts['head_attempts'])} and is" if facts["head_attempts"] else "is"
        then = when(facts["head_next_attempt_at"], facts["now"])
        said = f": entry {head} of the same key {failed} tried again {then}{error}; it waits behind it"
        return said, f"ferryman outbox show {head}"
    if facts["topic_reason"] == PAUSED:
        return ": its topic was paused, and goes on; the relay releases it in its order", _STATS
    if facts["topic_reason"] is not None:
        said = f": Kafka refuses topic {entry.topic} since {moment(facts['topic_since'])}: {facts['topic_reason']}"
        return said, "put that right; the relay tries again by itself"
    return ": what it waited for is out, and the relay releases it next", _STATS


def _replaying(known: EntryFacts) -> Explained:
    replay = known.replay
    if replay is None:
        return ": it is published once more when the relay comes to it", _STATS
    said = f": in replay {replay['id']} by {replay['who']} ({replay['reason']}); the relay publishes it once more"
    if replay["finished_at"] is None:
        resume = f"ferryman outbox replay --resume {replay['id']}"
        return f"{said}. That replay has not queued all of its entries", resume
    return said, _STATS if known.relays else "ferryman run relay"


def concerning(entry: ListedEntry, audit: Sequence[Row]) -> list[Row]:
    """Return the acts whose filter covers the entry, whatever its status was then; acts on others never do."""
    return [
        each
        for each in (act for act in audit if not act["filter"].keys() & {"consumer", "outbox"})
        if each["act"] == "rebase"
        or (each["act"] in ("pause", "resume") and each["filter"].get("topic") in (WHOLE_OUTBOX, entry.topic))
        or (
            each["act"] in ("replay", "discard")
            and entry.position <= each["filter"].get("last_position", entry.position)
            and EntrySelection.from_json(each["filter"]).covers(
                entry.position, entry.topic, entry.key, entry.type, entry.created_at
            )
        )
    ]


def when(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "soon"
    seconds = (at - now).total_seconds()
    return f"at {moment(at)} (in {span(seconds)})" if seconds > 1 else "now"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"
