"""The table of SQLSTATEs and Kafka codes: each code exists, and has the right family."""

import confluent_kafka
import psycopg
import pytest

from ferryman.runtime import codes
from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient, Unreachable


def library_codes() -> set[str]:
    return {
        confluent_kafka.KafkaError(value).name()
        for name, value in vars(confluent_kafka.KafkaError).items()
        if name.isupper() and isinstance(value, int)
    }


def test_every_kafka_code_in_the_table_is_one_of_the_library() -> None:
    assert set(codes.KAFKA_CODES) - library_codes() == set()


def test_every_sqlstate_in_the_table_is_one_of_postgresql() -> None:
    known = set(psycopg.errors._sqlcodes)
    assert {code for code in codes.SQLSTATES if len(code) == 5} - known == set()
    assert {code for code in codes.SQLSTATES if len(code) == 2} - {code[:2] for code in known} == set()


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("40001", Transient),  # serialization failure
        ("40P01", Transient),  # deadlock
        ("55P03", Transient),  # lock timeout
        ("57014", Transient),  # statement timeout
        ("08006", Unreachable),  # by its class
        ("57P01", Unreachable),
        ("25006", Unreachable),  # a standby
        ("28P01", Misconfigured),  # wrong password
        ("42501", Misconfigured),  # missing privilege
        ("42P01", Misconfigured),  # missing table
        ("23505", Permanent),  # unique violation, by its class
        ("22001", Permanent),
        ("P0001", Permanent),  # not listed
        (None, Unreachable),  # never reached the server
    ],
)
def test_an_sqlstate_is_judged_by_itself_then_by_its_class(code: str | None, family: type[FerrymanError]) -> None:
    assert codes.sqlstate(code).family is family


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("_ALL_BROKERS_DOWN", Unreachable),
        ("NOT_ENOUGH_REPLICAS", Transient),  # not listed
        ("MSG_SIZE_TOO_LARGE", Permanent),
        ("TOPIC_AUTHORIZATION_FAILED", Misconfigured),
        ("SASL_AUTHENTICATION_FAILED", Misconfigured),
        ("_PURGE_INFLIGHT", Transient),
    ],
)
def test_a_kafka_code_is_judged_by_its_name(code: str, family: type[FerrymanError]) -> None:
    assert codes.kafka(code).family is family


def test_a_family_makes_an_error_with_setting_and_remedy() -> None:
    error = codes.sqlstate("28P01").error("it said no")
    assert isinstance(error, Misconfigured)
    assert (error.setting, error.remedy) == ("database_url", "correct the user or the password")
