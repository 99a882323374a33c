"""Why an entry is where it is, in words, and the command to run next. Pure: what is known is passed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ferryman.relay.operator import selection as status
from ferryman.relay.operator.selection import Selection
from ferryman.relay.store.listing import Listed
from ferryman.runtime.times import moment, span

Row = dict[str, Any]

# The reason that the relay parks the entries of a paused topic for.
PAUSED = "it is paused"


@dataclass(frozen=True, slots=True)
class Known:
    """What decides about an entry, beside itself: `store.standing.facts`, what is paused, replays, relays, acts."""

    facts: Row
    paused: Sequence[Row] = ()
    replay: Row | None = None
    relays: int = 0
    audit: Sequence[Row] = ()

    @property
    def now(self) -> datetime:
        moment: datetime = self.facts["now"]
        return moment


@dataclass(frozen=True, slots=True)
class Story:
    """The reason, what to run next (nothing, when waiting is all), and the acts that may have concerned it."""

    reason: str
    next: str | None
    audit: Sequence[Row]


def tell(entry: Listed, known: Known) -> Story:
    reason, command = _reason(entry, known)
    return Story(f"{entry.status}{reason}", command, _concerning(entry, known.audit))


def _reason(entry: Listed, known: Known) -> tuple[str, str | None]:
    tellers: dict[str, Callable[[], tuple[str, str | None]]] = {
        status.PENDING: lambda: _pending(entry, known),
        status.RETRYING: lambda: _retrying(entry, known),
        status.PARKED: lambda: _parked(entry, known),
        status.REPLAYING: lambda: _pause_of(entry, known) or _replaying(known),
        status.FAILED: lambda: _failed(entry),
        status.DISCARDED: lambda: _discarded(entry),
    }
    if teller := tellers.get(entry.status):
        return teller()
    return ": Kafka acknowledged it, and nothing is left to do", None


def _failed(entry: Listed) -> tuple[str, str | None]:
    tried = f" after {attempts(entry.attempts)}: {entry.error or 'no error was recorded'}"
    return tried, f"ferryman outbox replay --id {entry.position}   or   ferryman outbox discard --id {entry.position}"


def _discarded(entry: Listed) -> tuple[str, str | None]:
    since = f" by hand at {moment(entry.changed_at)}" if entry.changed_at else ""
    error = f"; it had failed with: {entry.error}" if entry.error else ""
    return f"{since}: it is not published{error}", f"ferryman outbox replay --id {entry.position}"


def _pending(entry: Listed, known: Known) -> tuple[str, str | None]:
    if stop := _pause_of(entry, known):
        return stop
    if not known.relays:
        return (
            ": the relay has not read it yet, and no relay is connected to this database",
            "ferryman run relay",
        )
    if known.facts["in_target"]:
        return ": the relay is reading the window that it is in", "ferryman outbox stats"
    if known.facts["late"]:
        return (
            ": its transaction committed after later positions were read; it goes first when the relay reads next",
            "ferryman outbox stats",
        )
    ahead = known.facts["ahead"] - 1
    behind = f"; up to {ahead} positions stand before it" if ahead > 0 else ""
    return (
        f": its transaction committed after the last window; the relay has not read it yet{behind}",
        "ferryman outbox stats",
    )


def _retrying(entry: Listed, known: Known) -> tuple[str, str | None]:
    if stop := _pause_of(entry, known):
        return stop
    failed = f"it failed {times(entry.attempts)}" if entry.attempts else "it waited, and was let go"
    error = f": {entry.error}" if entry.error else ""
    return f": {failed}, and is tried again {_when(entry.next_attempt_at, known.now)}{error}", (
        f"wait, or give it up: ferryman outbox discard --id {entry.position}"
    )


def _parked(entry: Listed, known: Known) -> tuple[str, str | None]:
    if stop := _pause_of(entry, known):
        return stop
    facts = known.facts
    if facts["key_parked"] and facts["head_position"] is not None:
        error = f": {facts['head_error']}" if facts["head_error"] else ""
        failed = f"failed {times(facts['head_attempts'])} and is" if facts["head_attempts"] else "is"
        when = _when(facts["head_next_attempt_at"], known.now)
        return (
            f": entry {facts['head_position']} of the same key {failed} tried again {when}{error}; it waits behind it",
            f"ferryman outbox show {facts['head_position']}",
        )
    if facts["topic_reason"] == PAUSED:
        return ": its topic was paused, and goes on; the relay releases it in its order", "ferryman outbox stats"
    if facts["topic_reason"] is not None:
        return (
            f": Kafka refuses topic {entry.topic} since {moment(facts['topic_since'])}: {facts['topic_reason']}",
            "put that right; the relay tries again by itself",
        )
    return ": what it waited for is out, and the relay releases it next", "ferryman outbox stats"


def _replaying(known: Known) -> tuple[str, str | None]:
    replay = known.replay
    if replay is None:
        return ": it is published once more when the relay comes to it", "ferryman outbox stats"
    said = f": in replay {replay['id']} by {replay['who']} ({replay['reason']}); the relay publishes it once more"
    if replay["finished_at"] is None:
        return (
            f"{said}. That replay has not queued all of its entries",
            f"ferryman outbox replay --resume {replay['id']}",
        )
    return said, "ferryman outbox stats" if known.relays else "ferryman run relay"


def _pause_of(entry: Listed, known: Known) -> tuple[str, str] | None:
    for each in known.paused:
        if each["topic"] in ("", entry.topic):
            what = f"topic {entry.topic}" if each["topic"] else "the whole outbox"
            said = f", and {what} is paused by {each['who']} since {moment(each['since'])} ({each['reason']})"
            return said, f"ferryman resume {each['name']}"
    return None


def _concerning(entry: Listed, audit: Sequence[Row]) -> list[Row]:
    """The acts whose filter covers the entry; which statuses they meant is long past. Those on consumers do not."""
    return [
        each
        for each in (act for act in audit if "consumer" not in act["filter"])
        if each["act"] == "rebase"
        or (each["act"] in ("pause", "resume") and each["filter"].get("topic") in ("", entry.topic))
        or (
            each["act"] in ("replay", "discard")
            and entry.position <= each["filter"].get("last_position", entry.position)
            and Selection.from_json(each["filter"]).covers(
                entry.position, entry.topic, entry.key, entry.type, entry.created_at
            )
        )
    ]


def _when(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "soon"
    seconds = (at - now).total_seconds()
    return f"at {moment(at)} (in {span(seconds)})" if seconds > 1 else "now"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"
