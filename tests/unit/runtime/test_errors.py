"""Errors say what is wrong, which setting it concerns and what to do, and decide the exit code."""

import pytest

from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient, Unreachable, env_name


def test_an_error_names_setting_environment_and_remedy_in_one_line() -> None:
    error = Misconfigured("no cluster is named.", setting="kafka.bootstrap_servers", remedy="set it to host:port")
    assert str(error) == (
        "no cluster is named. [setting kafka.bootstrap_servers, or FERRYMAN_KAFKA__BOOTSTRAP_SERVERS] "
        "Remedy: set it to host:port"
    )


def test_an_error_without_setting_or_remedy_is_just_its_message() -> None:
    assert str(FerrymanError("it is over")) == "it is over."


@pytest.mark.parametrize(
    ("family", "exit_code"),
    [(FerrymanError, 1), (Transient, 1), (Permanent, 1), (Unreachable, 4), (Misconfigured, 3)],
)
def test_the_family_decides_the_exit_code(family: type[FerrymanError], exit_code: int) -> None:
    assert family("x").exit_code == exit_code


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("database_url", "FERRYMAN_DATABASE_URL"),
        ("database.pool_max", "FERRYMAN_DATABASE__POOL_MAX"),
        ("kafka.sasl.username", "FERRYMAN_KAFKA__SASL_USERNAME"),
    ],
)
def test_every_setting_has_an_environment_name(setting: str, name: str) -> None:
    assert env_name(setting) == name
