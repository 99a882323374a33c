"""The table of a saga as SQL, for a service that has none yet: its columns follow from the row."""

from typing import Any

from ferryman.runtime.errors import Misconfigured
from ferryman.saga.asking import VISIT
from ferryman.saga.columns import SQL_TYPES, quoted
from ferryman.saga.declaration import Saga
from ferryman.saga.guards import enum, guards


def table(saga: Saga[Any]) -> str:
    """Return the SQL of the table and its guards."""
    columns = ",\n    ".join(_columns(saga))
    before = f"CREATE SCHEMA IF NOT EXISTS {saga.machine.schema};\n"
    if saga.machine.has_enum:
        before += f"{enum(saga.machine)}\n"
    return f"{before}CREATE TABLE {saga.table} (\n    {columns}\n);\n{guards(saga.machine)}"


def _columns(saga: Saga[Any]) -> list[str]:
    machine, ours = saga.machine, saga.machine.columns
    fixed = {
        "state": f"{ours.state} {machine.state_type} NOT NULL DEFAULT '{machine.initial}'",
        "attempt": f"{ours.attempt} integer NOT NULL DEFAULT 1",
        "reason": f"{ours.reason} text",
    }
    if saga.revisited:
        fixed[VISIT] = f"{VISIT} integer NOT NULL DEFAULT 0"
    columns = [fixed[name] if name in fixed else _own(saga, name) for name in saga.fields]
    columns[0] = f"{machine.key} {machine.key_type} PRIMARY KEY"
    return [*columns, f"{ours.due_at} timestamptz", f"{ours.changed_at} timestamptz NOT NULL DEFAULT clock_timestamp()"]


def _own(saga: Saga[Any], name: str) -> str:
    kind, optional = saga.types_of_fields[name]
    if kind not in SQL_TYPES:
        raise Misconfigured(
            f"the saga {saga.name}: there is no column type for {name}: {kind}",
            remedy=f"write the table {saga.table} yourself; `ferryman saga sql` then prints what its guards lack",
        )
    return f"{quoted(name)} {SQL_TYPES[kind]}{'' if optional else ' NOT NULL'}"
