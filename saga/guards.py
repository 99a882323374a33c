"""The guards of a machine's table, as SQL for the service's migration, and the check of a live table.

Guards are conditions of triggers: a change that is allowed costs an expression and no function call.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TypeAlias

import structlog

from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import Connection
from ferryman.saga.columns import SQL_TYPES, fits, quoted
from ferryman.saga.machine import Machine

log = structlog.get_logger(__name__)

BEGIN, END = "-- the machine {}: begin", "-- the machine {}: end"

_GUARDS = """\
ALTER TABLE {table} ADD CONSTRAINT {name}_states CHECK ({state} IN ({states}));
ALTER TABLE {table} ADD CONSTRAINT {name}_waits CHECK (({due_at} IS NULL) = ({state} IN ({terminals})));
CREATE TRIGGER {name}_begins BEFORE INSERT ON {table} FOR EACH ROW
    WHEN (NEW.{state} <> '{initial}')
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE TRIGGER {name}_ended BEFORE UPDATE ON {table} FOR EACH ROW
    WHEN (OLD.{state} IN ({terminals}))
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE TRIGGER {name}_goes BEFORE UPDATE ON {table} FOR EACH ROW
    WHEN (OLD.{key} <> NEW.{key} OR (OLD.{state} <> NEW.{state} AND (OLD.{state}, NEW.{state}) NOT IN (
{transitions}
    )))
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE TRIGGER {name}_stays BEFORE DELETE ON {table} FOR EACH ROW
    WHEN (OLD.{state} NOT IN ({terminals}) OR
          current_setting('ferryman.archiving', true) IS DISTINCT FROM '{name}')
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE TRIGGER {name}_all_stay BEFORE TRUNCATE ON {table} FOR EACH STATEMENT
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE INDEX {name}_due ON {table} ({due_by}) WHERE {due_at} IS NOT NULL;
CREATE INDEX {name}_over ON {table} ({changed_at}) WHERE {state} IN ({terminals});

-- Returns the rows that ended before that time, and deletes them: for archives that keep them elsewhere.
CREATE FUNCTION {schema}.{archive}(before timestamptz, who text, reason text, most integer DEFAULT 10000)
    RETURNS SETOF jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('ferryman.archiving', '{name}', true);
    RETURN QUERY WITH gone AS (
        DELETE FROM {table} WHERE {key} IN (
            SELECT {key} FROM {table} WHERE {state} IN ({terminals}) AND {changed_at} < before
            ORDER BY {changed_at} LIMIT most FOR UPDATE SKIP LOCKED
        ) RETURNING *
    ), audit AS (
        INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
        SELECT {archive}.who, 'archive', {archive}.reason, jsonb_build_object('machine', '{name}', 'before', before),
               count(*) FROM gone
    )
    SELECT to_jsonb(gone) FROM gone;
    PERFORM set_config('ferryman.archiving', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION {schema}.{archive} FROM PUBLIC;"""


def guards(machine: Machine) -> str:
    """Return the SQL of every guard, between two comments that mark it in the migration."""
    ours = machine.columns
    body = _GUARDS.format(
        **asdict(ours), name=machine.name, table=machine.table, schema=machine.schema, key=machine.key,
        due_by=f"{ours.state}, {ours.due_at}" if machine.due_by_state else ours.due_at,
        archive=machine.archive, initial=machine.initial,
        states=_words(machine.states), terminals=_words(machine.terminals),
        transitions=",\n".join(f"        ('{old}', '{new}')" for old, new in machine.transitions),
    )  # fmt: skip
    return f"{BEGIN.format(machine.name)}\n{body}\n{END.format(machine.name)}"


def enum(machine: Machine) -> str:
    """Return the SQL of the type of its states."""
    return f"CREATE TYPE {machine.state_type} AS ENUM ({_words(machine.states)});"


def _words(states: Iterable[str]) -> str:
    return ", ".join(f"'{each}'" for each in states)


# --- the live table

_EXISTS = """\
-- saga.table_exists
SELECT to_regclass(%(table)s) IS NOT NULL
"""

_LIVE = """\
-- saga.live_table
SELECT 'column', a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'base', a.attname, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0
UNION ALL SELECT 'never null', a.attname, '' FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND a.attnotnull
UNION ALL SELECT 'not given', a.attname, '' FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND a.attnotnull AND NOT a.attisdropped
  AND NOT a.atthasdef AND a.attidentity = ''
UNION ALL SELECT 'FUNCTION', p.proname, p.prosrc FROM pg_proc p WHERE p.oid = to_regprocedure(%(archive)s)
UNION ALL SELECT 'CONSTRAINT', c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint c
WHERE c.conrelid = to_regclass(%(table)s) AND c.convalidated
UNION ALL SELECT CASE WHEN t.tgenabled IN ('O', 'A') THEN 'TRIGGER' ELSE 'disabled' END, t.tgname,
                 pg_get_triggerdef(t.oid) FROM pg_trigger t WHERE t.tgrelid = to_regclass(%(table)s)
UNION ALL SELECT 'INDEX', i.relname, pg_get_indexdef(i.oid)
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = to_regclass(%(table)s) AND x.indisvalid
UNION ALL SELECT 'key', a.attname, ''
FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
WHERE x.indrelid = to_regclass(%(table)s) AND x.indisunique AND x.indnkeyatts = 1 AND x.indpred IS NULL
UNION ALL SELECT 'type', '', format_type(to_regtype(%(type)s), NULL)
UNION ALL SELECT 'label', e.enumlabel, '' FROM pg_enum e WHERE e.enumtypid = to_regtype(%(type)s)
"""
_GUARD = re.compile(r"(?:ADD|CREATE) (CONSTRAINT|TRIGGER|INDEX) (\w+) ")
_INDEXED = re.compile(r"INDEX \w+ ON \S+ (?:USING btree )?\(([^()]*)\).*?(?: WHERE (.*))?$")
_STATES = re.compile(r"'([^']*)'")
_DROPPED = {"CONSTRAINT": "ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name};\n",
            "TRIGGER": "DROP TRIGGER IF EXISTS {name} ON {table};\n",
            "INDEX": "DROP INDEX IF EXISTS {schema}.{name};\n"}  # fmt: skip
_OF = "(timestamptz, text, text, integer)"
"""The arguments of the function that archives."""
_TIME = "timestamp with time zone"
_ALIKE = {"text": {"text", "character varying"}, "integer": {"smallint", "integer", "bigint"}}

_Live: TypeAlias = Mapping[str, Mapping[str, str]]


def check(db: Connection, machine: Machine) -> None:
    """Refuse a live table that does not fit its machine, with the DDL that makes it fit."""
    live = _live(db, machine)
    if unfilled := sorted(live["not given"].keys() - machine.filled):
        remedy = "give them a default, or fields of the row; else insert the rows yourself"
        log.warning("`start` fills not every column", machine=machine.name, columns=unfilled, remedy=remedy)
    if found := _misfits(machine, live):
        problems, statements = zip(*found, strict=True)
        raise Misconfigured(
            f"the table {machine.table} does not fit the machine {machine.name}: {', '.join(problems)}",
            remedy="run this as its owner, in a migration:\n" + "\n".join(statements),
        )


def exists(db: Connection, machine: Machine) -> bool:
    """Return True if the table of the machine is there."""
    return bool(postgres.value(db.execute(_EXISTS, {"table": machine.table})))


def lacking(db: Connection, machine: Machine) -> list[tuple[str, str]]:
    """Return each problem of the live table, with the DDL that solves it.

    A guard fits if it names the same states in the same order, and an index the same columns, however the server
    writes it and whatever the index is called.
    """
    return _misfits(machine, _live(db, machine))


def _live(db: Connection, machine: Machine) -> _Live:
    given = {"table": machine.table, "type": machine.state_type, "archive": f"{machine.schema}.{machine.archive}{_OF}"}
    live = defaultdict[str, dict[str, str]](dict)
    for kind, name, said in db.execute(_LIVE, given).fetchall():
        live[kind][name] = said
    return live


def _misfits(machine: Machine, live: _Live) -> list[tuple[str, str]]:
    return [
        *_misfitting_columns(machine, live),
        *_misfitting_guards(machine, live),
        *_misfitting_archive(machine, live),
    ]


def _misfitting_columns(machine: Machine, live: _Live) -> Iterator[tuple[str, str]]:
    """Yield each problem of the columns and the key, with the DDL that solves it."""
    table, ours, columns = machine.table, machine.columns, live["column"]
    wanted = {
        machine.key: machine.key_type, ours.state: live["type"][""] or machine.state_type, ours.attempt: "integer",
        ours.reason: "text", ours.due_at: _TIME, ours.changed_at: _TIME,
    }  # fmt: skip
    yield from _misfitting_type(machine, live)
    if not columns:
        yield "it does not exist", f"CREATE TABLE {table} ({', '.join(map(' '.join, wanted.items()))});"
        columns = wanted
    for name, kind in wanted.items():
        if name not in columns:
            yield f"it has no column {name}", f"ALTER TABLE {table} ADD COLUMN {name} {kind};"
        elif columns[name] not in _ALIKE.get(kind, {kind}):
            change = f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind} USING {name}::{kind};"
            yield f"its {name} is {columns[name]}, not {kind}", change
    for name in (ours.reason, ours.due_at):
        if name in live["never null"]:
            yield f"its {name} is NOT NULL", f"ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL;"
    yield from _misfitting_own(machine, live["base"])
    if machine.key not in live["key"]:
        yield f"it has no unique index on {machine.key}", f"ALTER TABLE {table} ADD PRIMARY KEY ({machine.key});"


def _misfitting_type(machine: Machine, live: _Live) -> Iterator[tuple[str, str]]:
    """Yield the lack of the enum, or of each state in it, with the DDL that solves it."""
    kind, labels = machine.state_type, live["label"]
    if live["type"][""] is None:
        yield f"there is no type {kind}", enum(machine)
    for each in [each for each in machine.states if labels and each not in labels]:
        by_itself = "-- commit this before the rest: until then PostgreSQL refuses to use a new value"
        yield f"its type {kind} has no {each}", f"{by_itself}\nALTER TYPE {kind} ADD VALUE '{each}';"


def _misfitting_own(machine: Machine, live: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each column that the row names and that the table lacks, or has with a type that the row cannot have."""
    for name, kind in machine.own.items():
        column, wanted = quoted(name), SQL_TYPES.get(kind)
        by_hand = f"-- write the column {column} of {machine.table} yourself: it is {kind} in the row"
        if name not in live:
            add = f"ALTER TABLE {machine.table} ADD COLUMN {column} {wanted};"
            yield f"it has no column {name}", add if wanted else by_hand
        elif not fits(kind, live[name]):
            change = f"ALTER TABLE {machine.table} ALTER COLUMN {column} TYPE {wanted} USING {column}::text::{wanted};"
            yield f"its {name} is {live[name]}, not {wanted}", change


def _misfitting_guards(machine: Machine, live: _Live) -> Iterator[tuple[str, str]]:
    for statement in guards(machine).split(";\n"):
        if not (guard := _GUARD.search(statement)):
            continue
        kind, name = guard.groups()
        there, meant = live[kind].get(name), _meaning(statement)
        if kind == "INDEX" and any(_meaning(each) == meant for each in live[kind].values()):
            continue
        if there is None or _meaning(there) != meant:
            dropped = _DROPPED[kind].format(name=name, table=machine.table, schema=machine.schema)
            create = statement[statement.rindex("ALTER" if kind == "CONSTRAINT" else "CREATE") :]
            yield f"it has no {name}" if there is None else f"its {name} is another", f"{dropped}{create};"


def _misfitting_archive(machine: Machine, live: _Live) -> Iterator[tuple[str, str]]:
    _, create, rest = guards(machine).partition("CREATE FUNCTION")
    ours, there = rest.split("$$")[1], live["FUNCTION"].get(machine.archive)
    if there is None or there.split() != ours.split():
        said = f"it has no {machine.archive}" if there is None else f"its {machine.archive} is another"
        yield said, create.replace("CREATE", "CREATE OR REPLACE") + rest.removesuffix(END.format(machine.name))


def _meaning(statement: str) -> tuple[object, ...]:
    """Return the states that a guard names; of an index its columns, and its condition as far as we know it.

    An index of all rows finds those that have a value in its last column just as well.
    """
    if not (index := _INDEXED.search(statement)):
        return tuple(_STATES.findall(statement))
    columns, condition = (each.replace('"', "") for each in index.groups(""))
    if condition.strip("()") == f"{columns.rpartition(', ')[2]} IS NOT NULL":
        condition = ""
    words = re.findall(r"\w+", _STATES.sub("", condition))
    return columns, *_STATES.findall(condition), *words[:1], *({"AND", "OR", "NOT"} & {*words})
