"""The rules and fixtures of all tests are a plugin, so that they can be tested themselves."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.houses import Town

pytest_plugins = ["support.rules"]


@pytest.fixture
def town(ferryman_postgres: str, ferryman_database_url: str) -> "Iterator[Town]":
    """An orchestrator and a wallet, each on a database of its own."""
    from support.houses import two_databases

    with two_databases(ferryman_postgres, ferryman_database_url) as made:
        yield made
