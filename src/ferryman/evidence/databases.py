"""The two databases of payments: the orchestrator's and the wallet's, each with an outbox and an inbox of its own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.settings import Settings

Connection = psycopg.Connection[tuple[Any, ...]]

WALLETS = "payments.wallet_database_url"
"""The setting that names the wallet's database."""


@dataclass(frozen=True, slots=True)
class Databases:
    """A connection to each, in autocommit mode. They are the same one where one database is both."""

    orchestrator: Connection
    wallet: Connection


@contextmanager
def open_databases(settings: Settings, process: str) -> Iterator[Databases]:
    """Both, closed at the end; each refuses in words that name its setting."""
    with ExitStack() as closing:
        orchestrator = closing.enter_context(postgres.connect(settings, process, autocommit=True))
        yield Databases(orchestrator, closing.enter_context(connect_wallet(settings, process)))


def connect_wallet(settings: Settings, process: str) -> Connection:
    """As `postgres.connect`, in autocommit mode: what is wrong with its URL is wrong with the wallet's setting."""
    try:
        return postgres.connect(of_wallet(settings), process, autocommit=True)
    except FerrymanError as error:
        if error.setting == postgres.URL:
            error.setting = WALLETS
        raise


def of_wallet(settings: Settings) -> Settings:
    """The settings of a process at the wallet's database."""
    if settings.payments.wallet_database_url is None:
        raise Misconfigured(
            "the wallet's database is not named", setting=WALLETS,
            remedy="name it; where one database is both, name that one",
        )  # fmt: skip
    return settings.model_copy(update={"database_url": settings.payments.wallet_database_url})
