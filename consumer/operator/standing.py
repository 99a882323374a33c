"""How each consumer stands, as `ferryman inbox stats` prints it."""

from typing import Any

from ferryman.consumer.operator.listing import known
from ferryman.consumer.store import standing as store
from ferryman.consumer.store.receipts import Connection
from ferryman.runtime.desk import Desk

COUNTED = 20_000
"""So many receipts are counted, of more the number is an estimate."""


def gather(desk: Desk, consumer: str | None) -> list[dict[str, Any]]:
    """A row for each consumer."""
    with desk.acting() as connection:
        store.prepare(connection)
        names = known(store.consumers(connection), consumer)
        unusual, partitions = store.unusual(connection), store.partitions(connection)
        paused = {each["consumer"]: each for each in store.paused(connection)}
        processes, waiting = store.processes(connection, names), store.waiting(connection)
        return [
            {
                "consumer": name,
                "processes": processes[name],
                **_verdicts(connection, name, unusual.get(name, {})),
                "rejected_waiting": _rejected([each for each in waiting if each["consumer"] == name]),
                "partitions": _partitions(partitions.get(name), processes[name]),
                "paused": {key: paused[name][key] for key in ("since", "who", "reason")} if name in paused else None,
            }
            for name in names
        ]


def _verdicts(connection: Connection, name: str, unusual: dict[str, int]) -> dict[str, Any]:
    """Exact while there are few; else what the planner thinks, in the proportions of the newest."""
    newest = store.newest(connection, name, COUNTED)
    estimated = newest["looked_at"] == COUNTED
    done, refused = newest["done"], newest["refused"]
    if estimated and done + refused:
        handled = max(store.estimate(connection, name) - sum(unusual.values()), done + refused)
        refused = round(handled * refused / (done + refused))
        done = handled - refused
    verdicts = {"DONE": done, "REFUSED": refused} | {
        status: unusual.get(status, 0) for status in ("REJECTED", "RECEIVED", "REOPENED")
    }
    return {"verdicts": verdicts, "estimated": estimated}


def _rejected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "messages": sum(each["waiting"] for each in rows),
        "oldest_age_seconds": max((each["oldest_age_seconds"] for each in rows), default=None),
        "by_code": {each["code"]: each["waiting"] for each in rows},
    }


def _partitions(row: dict[str, Any] | None, processes: int) -> dict[str, Any]:
    """What is marked as owned while no process is there was not let go of: its owner was killed, or cut off."""
    owned, released = (row["owned"], row["released"]) if row else (0, 0)
    return {
        "owned": owned if processes else 0,
        "unclean": 0 if processes else owned,
        "released": released,
        "begun_again": (row["suspects"] if row else None) or [],
    }
