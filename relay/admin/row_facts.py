"""The facts beside the rows of a described outbox: how many wait, who delivers them, attempts and acts by hand."""

from collections.abc import Mapping
from typing import Any

from ferryman.migrations import chains
from ferryman.relay.admin.described_rows import RowDesk
from ferryman.runtime import postgres
from ferryman.runtime.desk import Connection, Row, dict_rows, read_paused_in

_MOST_DESTINATIONS, _MOST_ATTEMPTS, _MOST_ACTS = 20, 1_000, 500

# Neither delivered rows nor discarded ones are counted: there may be any number of them.
_STATISTICS = """\
-- outbox.row_statistics
SELECT grouping(destination) AS total, destination, count(*) FILTER (WHERE state = 'pending') AS pending,
       count(*) FILTER (WHERE state = 'retrying') AS retrying, count(*) FILTER (WHERE state = 'sending') AS sending,
       count(*) FILTER (WHERE state = 'lost') AS lost, count(*) FILTER (WHERE state = 'failed') AS failed,
       count(*) FILTER (WHERE state = 'held') AS held,
       count(*) FILTER (WHERE due) AS due,
       extract(epoch FROM clock_timestamp() - min(created) FILTER (WHERE alive))::float8 AS oldest_age_seconds,
       extract(epoch FROM clock_timestamp() - min(created) FILTER (WHERE due))::float8 AS oldest_due_age_seconds
FROM (
    SELECT r.*, r.state IN ('pending', 'retrying', 'sending', 'lost') AS alive,
           r.state IN ('pending', 'retrying') AND r.is_due AS due
    FROM (SELECT {row_destination} AS destination, {state} AS state, {is_due} AS is_due,
                 {created}::timestamptz AS created
          FROM {table} t WHERE t.{status} IN ({unfinished})) r
) r
GROUP BY ROLLUP (destination) ORDER BY total DESC, count(*) FILTER (WHERE alive) DESC, destination
LIMIT %(most)s
"""

_ATTEMPTS = """\
-- outbox.row_attempts
SELECT began_at, ended_at, outcome, code, error, reference, excerpt, content FROM (
    SELECT a.* FROM ferryman.outbox_attempt a WHERE a.outbox = %(outbox)s AND a.row_id = %(id)s
    ORDER BY a.number DESC LIMIT %(most)s
) latest ORDER BY number
"""

_ACTS = """\
-- outbox.row_acts
SELECT at, act, who, reason, entries, filter FROM ferryman.outbox_audit
WHERE filter ->> 'outbox' = %(outbox)s ORDER BY id DESC LIMIT %(most)s
"""

_COURIERS = """\
-- outbox.couriers
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %(name)s
"""


def statistics(rows: RowDesk) -> Row:
    """Return how many rows wait, altogether and by destination, and what holds them up."""
    with rows.desk.acting() as connection:
        found = rows.fetch(connection, _STATISTICS, most=_MOST_DESTINATIONS + 1)
        facts = {"paused": read_paused_in(connection, rows.name), "couriers": couriers(rows, connection)}
    total = {name: value for name, value in found[0].items() if name not in ("total", "destination")}
    places = [{name: value for name, value in each.items() if name != "total"} for each in found[1:]]
    return {"outbox": rows.name, **total, "destinations": places, **facts}


def couriers(rows: RowDesk, connection: Connection) -> int:
    """Return how many processes that deliver the outbox are connected."""
    return int(postgres.value(connection.execute(_COURIERS, {"name": f"ferryman outbox {rows.name}"[:63]})))


def history(rows: RowDesk, connection: Connection, identity: str) -> list[Row]:
    """Return the row's recorded attempts, the oldest first: those by Kafka are not recorded."""
    if rows.by_kafka:
        return []
    return dict_rows(connection, _ATTEMPTS, {"outbox": rows.name, "id": identity, "most": _MOST_ATTEMPTS})


def acts(rows: RowDesk, connection: Connection, row: Row) -> list[Row]:
    """Return the acts by hand that may have concerned the row, the newest first."""
    if not any(chains.level(connection, [chains.ENGINE]).values()):
        return []
    every = dict_rows(connection, _ACTS, {"outbox": rows.name, "most": _MOST_ACTS})
    return [each for each in every if _concerns(each["filter"], row)]


def _concerns(given: Mapping[str, Any], row: Row) -> bool:
    return row["id"] in given.get("ids", [row["id"]]) and (
        row["destination"] is None or given.get("destination") in (None, "", row["destination"])
    )
