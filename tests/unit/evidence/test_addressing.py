"""A command for the wallet's database names it: by a source, by the variable that has its URL, or by a gap to fill."""

from typing import Any

import pytest

from ferryman.cli.wiring import settings_class
from ferryman.evidence.sides import DatabaseAddress, address_of

URL = "postgresql://w/w"
SETTING = "payments.wallet_database_url"
GAP = "<the wallet's URL>"
VARIABLE = "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL"
BOOKS = {"other": {"database_url": "postgresql://o/o"}, "books": {"database_url": URL}}


def address(sources: dict[str, Any], origin: str | None) -> DatabaseAddress:
    found = settings_class().model_validate({"payments": {"wallet_database_url": URL}, "relay": {"sources": sources}})
    return address_of(found, "wallet", SETTING, origin)


@pytest.mark.parametrize("origin", [None, "ferryman.toml", f"{VARIABLE}_FILE"])
def test_the_variable_is_named_only_where_it_has_the_url(origin: str | None) -> None:
    """Elsewhere it would be empty, and its password is not for the screen."""
    assert address({}, origin).of("ferryman run wallet") == f"FERRYMAN_DATABASE_URL={GAP} ferryman run wallet"
    assert address({}, VARIABLE).of("ferryman run wallet") == (
        f'FERRYMAN_DATABASE_URL="${VARIABLE}" ferryman run wallet'
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ferryman outbox replay --id 7 --yes --reason 'mended'",
         "ferryman outbox replay --id 7 --yes --reason 'mended' --source books"),
        ("ferryman resume wallet --consumer", "ferryman resume wallet --consumer --source books"),
        ("then ferryman inbox requeue --id 1   or   ferryman inbox discard --id 1",
         "then ferryman inbox requeue --id 1 --source books   or   ferryman inbox discard --id 1 --source books"),
        ("ferryman run relay", "ferryman run relay"),
        ("ferryman run wallet", f"FERRYMAN_DATABASE_URL={GAP} ferryman run wallet"),
    ],
)  # fmt: skip
def test_command_names_the_relays_source_if_it_takes_one(command: str, expected: str) -> None:
    """Its relay runs for every source."""
    assert address(BOOKS, "ferryman.toml").of(command) == expected
