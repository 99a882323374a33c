"""The rules and fixtures of all tests are a plugin, so that they can be tested themselves."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

    from support.houses import Town
    from support.paying import Desk

pytest_plugins = ["support.rules"]


@pytest.fixture
def town(ferryman_postgres: str, ferryman_database_url: str) -> "Iterator[Town]":
    """An orchestrator and a wallet, each on a database of its own."""
    from support.houses import two_databases

    with two_databases(ferryman_postgres, ferryman_database_url) as made:
        yield made


@pytest.fixture
def desk(ferryman_db: "psycopg.Connection[Any]") -> "Iterator[Desk]":
    """The payment orchestrator, where a test has no other desk."""
    from ferryman import use_schemas
    from ferryman.schemas import active
    from support.paying import Desk

    yield Desk(ferryman_db, use_schemas())
    active.forget()
