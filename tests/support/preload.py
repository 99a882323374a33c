"""What the fork server of `launch` imports before it forks: all of the program, and nothing that starts a thread."""

import importlib

import alembic.command
import confluent_kafka.admin
import psycopg_pool
import rich.table
import sqlalchemy.dialects.postgresql.psycopg

from ferryman.cli.app import COMMANDS

for _module, _line in COMMANDS.values():
    importlib.import_module(_module)
importlib.import_module("ferryman.relay.service")
importlib.import_module("ferryman.console.service")

__all__ = ["alembic", "confluent_kafka", "psycopg_pool", "rich", "sqlalchemy"]
