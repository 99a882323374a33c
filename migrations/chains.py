"""Which chains there are, how far each goes, and whether a database is where this version needs it.

Loads neither Alembic nor SQLAlchemy: every process checks the level when it starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.version import __version__

HOME = Path(__file__).resolve().parent
SCHEMA = "ferryman"
ENGINE = "engine"


@cache
def owners() -> tuple[str, ...]:
    """Every chain, the engine's first: the others may refer to its tables."""
    found = {folder.name for folder in HOME.iterdir() if any(folder.glob("[0-9]*.py"))}
    return (ENGINE, *sorted(found - {ENGINE}))


@cache
def head(owner: str) -> str:
    """The newest revision this version of Ferryman knows; a revision is called `<owner>_<number of its file>`."""
    return f"{owner}_{max(file.name for file in (HOME / owner).glob('[0-9]*.py'))[:4]}"


def version_table(owner: str) -> str:
    return f"version_{owner}"


def level(connection: psycopg.Connection[Any], wanted: Iterable[str]) -> dict[str, str | None]:
    """Each chain's revision in this database; None where it was never migrated."""
    return {owner: _revision(connection, owner) for owner in wanted}


def check(connection: psycopg.Connection[Any], wanted: Sequence[str] = (ENGINE,)) -> None:
    """Refuses a database that is older or newer than this code."""
    for owner, have in level(connection, wanted).items():
        if problem := misfit(owner, have):
            raise problem


def misfit(owner: str, have: str | None) -> Misconfigured | None:
    """What keeps this version from working with a database at that revision."""
    need = head(owner)
    if have == need:
        return None
    migrate = f"run `ferryman migrate{'' if owner == ENGINE else f' --for {owner}'}`"
    if have is None:
        return Misconfigured(f"the database has no {owner} schema", setting="database_url", remedy=migrate)
    if have < need:
        return Misconfigured(
            f"the database is older than the code: {owner} is at {have}, Ferryman {__version__} needs {need}",
            remedy=migrate,
        )
    return Misconfigured(
        f"the database is newer than the code: {owner} is at {have}, Ferryman {__version__} knows {need}",
        remedy="upgrade this process: migrations only go forward",
    )


def parse(names: str) -> tuple[str, ...]:
    """The chains that `--for engine,wallet` or `--for all` names; the engine's is always among them."""
    if names == "all":
        return owners()
    asked = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := sorted(asked - set(owners())):
        raise Misconfigured(
            f"no chain of migrations is called {', '.join(unknown)}", remedy=f"the chains are: {', '.join(owners())}"
        )
    return tuple(owner for owner in owners() if owner == ENGINE or owner in asked)


def _revision(connection: psycopg.Connection[Any], owner: str) -> str | None:
    table = f"{SCHEMA}.{version_table(owner)}"
    exists = connection.execute(
        "-- migrations.has_version_table\nSELECT to_regclass(%s) IS NOT NULL", (table,)
    ).fetchone()
    if not exists or not exists[0]:
        return None
    query = sql.SQL("-- migrations.read_level\nSELECT version_num FROM {}").format(
        sql.Identifier(SCHEMA, version_table(owner))
    )
    row = connection.execute(query).fetchone()
    return str(row[0]) if row else None


def moved(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> list[dict[str, str | None]]:
    """What a migration did, a row per chain."""
    return [{"chain": owner, "from": before[owner], "to": after[owner]} for owner in after]
