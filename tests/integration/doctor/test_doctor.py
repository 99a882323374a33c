"""The doctor names what is wrong and what to do, for each check."""

import re
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo, sql
from pydantic import SecretStr

from ferryman.doctor import Check, Status, examine, kafka, postgres
from ferryman.doctor.model import ok
from ferryman.runtime.settings import Kafka, RegistrySettings, Settings
from ferryman.testing import stack
from ferryman.testing.receiver import Answer, Receiver


def found(settings: Settings) -> dict[str, Check]:
    return {check.name: check for check in examine(settings)}


def settings(url: str | None = None, kafka_at: str | None = None, registry: str | None = None, **more: str) -> Settings:
    return Settings(
        database_url=url,
        registry_url=registry,
        kafka=Kafka(bootstrap_servers=kafka_at, timeout_seconds=2, properties=more),
    )


@pytest.mark.real_kafka
def test_real_parts_that_are_well_are_green(
    ferryman_database_url: str, ferryman_kafka: str, ferryman_registry: str
) -> None:
    """Every check is green but one: the test server trades safety for speed, which is a warning."""
    checks = found(settings(ferryman_database_url, ferryman_kafka, ferryman_registry))
    assert {name for name, check in checks.items() if check.status is not Status.OK} == {"postgresql.settings"}
    assert checks["postgresql.settings"].status is Status.WARNING
    assert "fsync is off" in checks["postgresql.settings"].detail


@pytest.mark.real_kafka
def test_a_real_broker_is_new_enough(ferryman_kafka: str) -> None:
    assert found(settings(kafka_at=ferryman_kafka))["kafka.version"] == ok(
        "kafka.version", "4.0 or newer, or not Apache Kafka"
    )


@pytest.mark.parametrize(
    ("protocol", "status"), [("2.7-IV2", Status.FAILED), ("2.8", Status.OK), ("3.7-IV4", Status.OK)]
)
def test_a_broker_before_2_8_is_too_old(protocol: str, status: Status) -> None:
    assert kafka._version(protocol).status is status


def test_without_settings_only_the_database_check_fails() -> None:
    checks = found(settings())
    assert checks["postgresql.reached"].status is Status.FAILED
    assert checks["kafka.reached"].status is Status.SKIPPED
    assert checks["registry.reached"].status is Status.SKIPPED


def test_servers_that_are_away_fail_with_a_setting_and_a_remedy_each() -> None:
    away = settings("postgresql://u:p@127.0.0.1:1/d", "127.0.0.1:1", "http://127.0.0.1:1/api")
    for check in examine(away):
        assert check.status is Status.FAILED
        assert check.setting
        assert check.remedy


def test_a_database_that_was_not_migrated_fails_with_the_command(ferryman_postgres: str) -> None:
    checks = found(settings(ferryman_postgres))
    assert checks["postgresql.migrations"].remedy == "run `ferryman migrate`"
    assert checks["postgresql.privileges"].status is Status.FAILED


def test_a_user_without_the_role_is_told_the_grant(
    ferryman_db: psycopg.Connection[tuple[object, ...]], ferryman_database_url: str
) -> None:
    ferryman_db.execute("DROP ROLE IF EXISTS plain_user")
    ferryman_db.execute("CREATE ROLE plain_user LOGIN PASSWORD 'x'")
    url = re.sub(r"//[^@]+@", "//plain_user:x@", ferryman_database_url)
    try:
        privileges = found(settings(url))["postgresql.privileges"]
        assert privileges.status is Status.FAILED
        assert "GRANT ferryman_relay TO plain_user" in str(privileges.remedy)
        ferryman_db.execute("GRANT ferryman_relay TO plain_user")
        checks = found(settings(url))
        assert checks["postgresql.privileges"].detail == "plain_user has ferryman_relay"
        assert checks["postgresql.migrations"].status is Status.OK
    finally:
        ferryman_db.execute("DROP ROLE plain_user")


@pytest.mark.parametrize(
    "role", ["ferryman_courier", "ferryman_writer", "ferryman_consumer", "ferryman_relay", "ferryman_monitor"]
)
def test_login_with_the_role_of_its_process_alone_fails_no_check(
    ferryman_db: psycopg.Connection[tuple[object, ...]], ferryman_database_url: str, role: str
) -> None:
    url = stack.login(ferryman_database_url, f"doctor_{role}", role)
    login = str(conninfo.conninfo_to_dict(url)["user"])
    try:
        checks = found(settings(url))
        assert [each for each in checks.values() if each.status is Status.FAILED] == []
        assert checks["postgresql.privileges"].detail == f"{login} has {role}"
        judged = Status.SKIPPED if role == "ferryman_courier" else Status.OK
        assert checks["postgresql.server"].status is judged
    finally:
        ferryman_db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(login)))


@pytest.mark.parametrize(("seconds", "status"), [(0.2, Status.OK), (1.5, Status.WARNING), (3600, Status.FAILED)])
def test_a_clock_that_is_off_is_judged_by_how_far(seconds: float, status: Status) -> None:
    assert postgres.judge_clock(seconds).status is status


def test_the_clock_of_a_server_on_this_machine_agrees(ferryman_database_url: str) -> None:
    assert found(settings(ferryman_database_url))["postgresql.clock"].status is Status.OK


def test_a_misspelt_value_for_librdkafka_names_it(ferryman_kafka: str) -> None:
    reached = found(settings(kafka_at=ferryman_kafka, **{"security.protocol": "telegraph"}))["kafka.reached"]
    assert reached.status is Status.FAILED
    assert "security.protocol" in reached.detail


def test_a_server_with_another_protocol_is_not_mistaken_for_kafka() -> None:
    with Receiver() as http:
        reached = found(settings(kafka_at=http.url.removeprefix("http://")))["kafka.reached"]
    assert reached.status is Status.FAILED


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(401), "give a user and password in the URL, or properties under [registry]"),
        (Answer(404), "check that the URL is that of the registry's Confluent API"),
        (Answer(500), "see what the registry's log says"),
        (Answer(200, b"<html>"), "check that the URL is that of the registry's Confluent API"),
    ],
)
def test_a_registry_that_answers_wrongly_is_told_by_its_answer(answer: Answer, said: str) -> None:
    with Receiver(lambda _: answer) as http:
        check = found(settings(registry=http.url))["registry.reached"]
    assert check.status is Status.FAILED
    assert said in str(check.remedy)


def test_the_registry_is_asked_with_the_properties_of_the_settings() -> None:
    with Receiver(lambda _: Answer(404, b'{"error_code": 40401}')) as http:
        asked = Settings(
            registry_url=http.url, registry=RegistrySettings(properties={"bearer.auth.token": SecretStr("t0ken")})
        )
        assert found(asked)["registry.reached"].status is Status.OK
        assert [each.headers["authorization"] for each in http.requests] == ["Bearer t0ken"]


def test_a_folder_can_be_the_registry(tmp_path: Path) -> None:
    assert found(settings(registry=tmp_path.as_uri()))["registry.reached"].status is Status.OK
    assert found(settings(registry=(tmp_path / "gone").as_uri()))["registry.reached"].status is Status.FAILED
    assert found(settings(registry="ftp://x"))["registry.reached"].status is Status.FAILED
