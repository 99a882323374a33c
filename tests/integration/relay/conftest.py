"""A table whose rows leave by HTTP, a receiver of them, and logins."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from psycopg import conninfo, sql

from ferryman.runtime.postgres import Connection
from ferryman.testing import stack
from ferryman.testing.receiver import Receiver
from support.hooks import HookTable


@pytest.fixture
def hooks(ferryman_database_url: str, ferryman_db: Connection) -> HookTable:
    return HookTable(ferryman_database_url, ferryman_db)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def login(ferryman_db: Connection, ferryman_database_url: str) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def make(*roles: str) -> str:
        url = stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", *roles)
        made.append(str(conninfo.conninfo_to_dict(url)["user"]))
        return url

    yield make
    for user in made:
        ferryman_db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(user)))
