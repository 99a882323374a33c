"""What became of a message, in words, and the command to run next. Pure: what is known is passed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferryman.runtime.times import moment

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """All that stands of one message of one consumer: its receipt, its rejected records (the newest first), and how
    its consumer is.
    """

    receipt: Row | None
    records: Sequence[Row] = ()
    unfit: str | None = None
    """Why the newest record cannot be requeued."""
    paused: Row | None = None
    processes: int = 0
    relays: int = 0

    @property
    def record(self) -> Row | None:
        return self.records[0] if self.records else None

    @property
    def consumer(self) -> str:
        name: str = (self.receipt or self.records[0])["consumer"]
        return name

    @property
    def conflict(self) -> bool:
        """The newest record is of another message than the receipt."""
        return self.record is not None and self.record["code"] == "CONFLICT"


@dataclass(frozen=True, slots=True)
class Story:
    """The reason, and what to run next: nothing, when nothing is left to do or waiting is all."""

    reason: str
    next: str | None


def tell(known: Known) -> Story:
    if known.record and known.record["status"] == "REJECTED":
        return _rejected(known, known.record)
    if known.receipt is None or (known.receipt["status"] == "REJECTED" and known.record):
        assert known.record is not None
        return _settled(known, known.record)
    match known.receipt["status"]:
        case "HANDLED":
            return _handled(known, known.receipt)
        case "RECEIVED":
            return _received(known.receipt)
        case "REOPENED":
            return _reopened(known)
    return Story("REJECTED, and its record is not there any more", None)


def results(receipt: Row) -> list[dict[str, str]]:
    """What was reported: ids, topics and types, no payloads."""
    return [
        {"id": each[5], "topic": each[0], "type": each[2], "key": each[1]}
        for each in json.loads(receipt["results"] or "[]")
    ]


def _rejected(known: Known, record: Row) -> Story:
    said = f"REJECTED ({record['code']}): {record['error']}"
    discard = f"ferryman inbox discard --id {_place(record)} --consumer {known.consumer}"
    if known.unfit is not None:
        return Story(f"{said}. It cannot be requeued: {known.unfit}", discard)
    requeue = f"ferryman inbox requeue --id {_place(record)} --consumer {known.consumer}"
    return Story(said, f"mend the cause, then {requeue}   or   {discard}")


def _settled(known: Known, record: Row) -> Story:
    by = f"by {record['who']} at {moment(record['changed_at'])} ({record['reason']})"
    was = f"it had been rejected with {record['code']}: {record['error']}"
    if record["status"] == "DISCARDED":
        again = None if known.unfit else f"ferryman inbox requeue --id {_place(record)} --consumer {known.consumer}"
        return Story(f"DISCARDED {by}: it has no effect; {was}", again)
    return Story(f"REQUEUED {by}; {was}", f"ferryman inbox list --consumer {known.consumer} --status REOPENED")


def _received(receipt: Row) -> Story:
    if receipt["error"]:
        return Story(f"RECEIVED, at most once: it failed, had no effect and never will: {receipt['error']}", None)
    said = "RECEIVED, at most once: it is being handled at this moment, or its process died; then it had no effect"
    return Story(said, f"ferryman inbox show {receipt['id']}")


def _reopened(known: Known) -> Story:
    record = known.record
    by = f" by {record['who']} at {moment(record['changed_at'])} ({record['reason']})" if record else ""
    if known.paused:
        pause = known.paused
        waits = f"; its consumer is paused by {pause['who']} since {moment(pause['since'])} ({pause['reason']})"
        return Story(f"REOPENED: requeued{by}{waits}", f"ferryman resume {known.consumer} --consumer")
    if not known.processes:
        return Story(f"REOPENED: requeued{by}; no process of its consumer is connected", "ferryman run module:object")
    if not known.relays:
        said = f"REOPENED: requeued{by}; no relay is connected to this database, which would publish it"
        return Story(said, "ferryman run relay")
    said = f"REOPENED: requeued{by}; the relay publishes it, and its consumer takes it from its retry topic"
    return Story(said, "ferryman outbox stats")


def _handled(known: Known, receipt: Row) -> Story:
    reported = results(receipt)
    many = {0: "nothing was reported", 1: "1 message was reported"}.get(
        len(reported), f"{len(reported)} messages were reported"
    )
    what = f"refused ({receipt['reason']})" if receipt["outcome"] == "REFUSED" else "it took effect"
    before = ", after it had been rejected and requeued" if known.records and not known.conflict else ""
    look = f"ferryman outbox show {reported[0]['id']}" if reported else None
    return Story(f"HANDLED: {what}{before}, and {many}", look)


def _place(record: Row) -> str:
    return f"{record['topic']}/{record['partition']}/{record['offset']}"
