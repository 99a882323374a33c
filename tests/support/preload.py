"""Import the whole program in the fork server of `launch`, and nothing that starts a thread."""

import importlib

import confluent_kafka.admin
import psycopg_pool
import rich.table
import sqlalchemy.dialects.postgresql.psycopg

from ferryman.cli.app import COMMANDS

for _module, _line in COMMANDS.values():
    importlib.import_module(_module.partition(":")[0])
importlib.import_module("ferryman.relay.service")
importlib.import_module("ferryman.relay.described.couriers")
importlib.import_module("ferryman.channels.http.client")
importlib.import_module("ferryman.console.service")

__all__ = ["confluent_kafka", "psycopg_pool", "rich", "sqlalchemy"]
