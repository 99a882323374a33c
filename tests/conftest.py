"""The fixtures of several rooms. The rules of all tests are a plugin, so that they can be tested themselves."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

    from support.paying import Desk
    from support.town import Town

pytest_plugins = ["support.rules"]


@pytest.fixture
def town(ferryman_database_url: str, ferryman_new_database: Callable[[], str]) -> "Iterator[Town]":
    """Give an orchestrator and a wallet, each on a database of its own."""
    from support.town import two_databases

    with two_databases(ferryman_database_url, ferryman_new_database()) as made:
        yield made


@pytest.fixture
def desk(ferryman_db: "psycopg.Connection[Any]") -> "Iterator[Desk]":
    """Give the payment orchestrator."""
    from ferryman import use_schemas
    from ferryman.schemas import active
    from support.paying import Desk

    yield Desk(ferryman_db, use_schemas())
    active.forget()


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a system in a folder of its own, with a chain of its own, beside ours."""
    from support.toybox import with_toys

    (tmp_path / "chains").mkdir()
    with with_toys(tmp_path / "chains", monkeypatch):
        yield
