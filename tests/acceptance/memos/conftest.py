"""Mail servers, and workers that send mails about memos to them."""

from collections.abc import Iterator

import pytest

from ferryman.runtime.postgres import Connection
from ferryman.testing.mail import MailServer
from ferryman.testing.resend import ResendServer
from support.launch import Launcher
from support.memoing import Memoing


@pytest.fixture
def smtp() -> Iterator[MailServer]:
    with MailServer() as running:
        yield running


@pytest.fixture
def resend() -> Iterator[ResendServer]:
    with ResendServer() as running:
        yield running


@pytest.fixture
def by_smtp(ferryman: Launcher, ferryman_database_url: str, ferryman_db: Connection, smtp: MailServer) -> Memoing:
    return Memoing(ferryman, ferryman_database_url, ferryman_db, smtp)


@pytest.fixture
def by_resend(ferryman: Launcher, ferryman_database_url: str, ferryman_db: Connection, resend: ResendServer) -> Memoing:
    return Memoing(ferryman, ferryman_database_url, ferryman_db, resend)
