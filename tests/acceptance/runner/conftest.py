"""A receiver, and dispatchers that send to it."""

from collections.abc import Iterator

import pytest

from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Receiver
from support.dispatching import Dispatch
from support.launch import Launcher


@pytest.fixture
def dispatch(ferryman: Launcher, ferryman_database_url: str, ferryman_db: Connection) -> Iterator[Dispatch]:
    with Receiver() as receiver:
        yield Dispatch(ferryman, ferryman_database_url, ferryman_db, receiver)
