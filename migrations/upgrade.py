"""Moves a database to the newest revision, in one transaction and under one lock: replicas may start at once."""

import io
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from ferryman.migrations import chains
from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured

# Any 64-bit number of our own: whoever migrates holds it until the commit.
_LOCK = 0x46455252594D414E  # "FERRYMAN"

logging.getLogger("alembic").setLevel(logging.WARNING)  # the command says what moved, and to where

# Alembic's `context` is one per process, whatever the number of threads.
_ALEMBIC = threading.Lock()

_PREPARE = f"""\
-- migrations.prepare
SELECT set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true);
SELECT pg_advisory_xact_lock({_LOCK});
SELECT set_config('lock_timeout', '5s', true);
CREATE SCHEMA IF NOT EXISTS {chains.SCHEMA};
"""


def upgrade(connect: Callable[[], psycopg.Connection[Any]], owners: Sequence[str]) -> list[dict[str, str | None]]:
    """Applies what is missing; nothing, when another replica was first. Returns each chain's move."""
    engine = create_engine("postgresql+psycopg://", creator=partial(_in_transactions, connect))
    try:
        with engine.begin() as connection:
            # One simple query each: a DDL lock that cannot be had in 5 s must not queue every writer behind it.
            for statement in _PREPARE.strip().split(";\n"):
                connection.exec_driver_sql(statement.removesuffix(";"))
            driver: Any = connection.connection.driver_connection
            before = chains.level(driver, owners)
            _refuse_newer(before)
            with _ALEMBIC:
                for owner in owners:
                    command.upgrade(_config(owner, connection=connection), "head")
            return chains.moved(before, chains.level(driver, owners))
    except DBAPIError as error:
        raise postgres.translate(error.orig if isinstance(error.orig, psycopg.Error) else error) from error
    except psycopg.Error as error:
        raise postgres.translate(error) from error
    finally:
        engine.dispose()


def _in_transactions(connect: Callable[[], psycopg.Connection[Any]]) -> psycopg.Connection[Any]:
    """SQLAlchemy leaves BEGIN to the driver: on an autocommit connection the lock would be gone after its statement."""
    connection = connect()
    connection.autocommit = False
    return connection


def as_sql(owners: Sequence[str], since: str | None = None) -> str:
    """The same as text, for whoever may not let a program change the schema."""
    pieces = ["BEGIN;", _PREPARE]
    for owner in owners:
        buffer = io.StringIO()
        start = f"{since}:" if since and since.startswith(f"{owner}_") else ""
        with _ALEMBIC:
            command.upgrade(_config(owner, buffer), f"{start}head", sql=True)
        pieces.append(buffer.getvalue().strip())
    return "\n".join([*pieces, "COMMIT;", ""])


def _refuse_newer(before: dict[str, str | None]) -> None:
    for owner, have in before.items():
        if have is not None and have > chains.head(owner):
            raise chains.misfit(owner, have) or Misconfigured(f"{owner} is at {have}")


def _config(owner: str, buffer: io.StringIO | None = None, **attributes: Any) -> Config:
    config = Config(output_buffer=buffer)
    config.set_main_option("script_location", str(chains.HOME))
    config.set_main_option("version_locations", str(chains.HOME / owner))
    config.set_main_option("path_separator", "os")
    config.attributes.update(attributes, owner=owner)
    return config
