"""A login that lacks a privilege is told which role of docs/roles.md is missing, and which login it is."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import conninfo, sql

from ferryman import Consumer, Done
from ferryman.cli.app import run
from ferryman.consumer.service import ConsumerService
from ferryman.doctor import Check, Status, examine
from ferryman.relay.service import JournalRelay
from ferryman.runtime import postgres
from ferryman.runtime.errors import Exit, Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Kafka, Settings
from ferryman.runtime.settings_relay import Relay
from ferryman.saga.ddl import table
from ferryman.testing import stack
from support.orders import ORDERS

Database = psycopg.Connection[tuple[Any, ...]]
Login = Callable[..., str]
Refused = Callable[..., dict[str, Any]]

NOWHERE = Kafka(bootstrap_servers="127.0.0.1:1")


@pytest.fixture
def login(ferryman_db: Database, ferryman_database_url: str) -> Iterator[Login]:
    """Create logins for this database; they are dropped at the end."""
    made: list[str] = []

    def make(name: str, *roles: str) -> str:
        url = stack.login(ferryman_database_url, name, *roles)
        made.append(user_of(url))
        return url

    yield make
    for user in made:
        ferryman_db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(user)))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run a command that must end with exit code 3, and return its error."""

    def refuse(url: str, *arguments: str) -> dict[str, Any]:
        monkeypatch.setenv("FERRYMAN_DATABASE_URL", url)
        monkeypatch.setenv("FERRYMAN_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
        capsys.readouterr()
        assert run([*arguments, "--json"]) == Exit.CONFIGURATION
        error: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
        return error

    return refuse


def user_of(url: str) -> str:
    return str(conninfo.conninfo_to_dict(url)["user"])


def wrong(url: str) -> str:
    """Return the URL with a wrong password."""
    return url.replace(str(conninfo.conninfo_to_dict(url)["password"]), "wrong")


def checks(settings: Settings) -> dict[str, Check]:
    return {check.name: check for check in examine(settings)}


@pytest.mark.parametrize(
    ("command", "roles"),
    [
        ("outbox stats", ("ferryman_writer", "ferryman_monitor")),
        ("outbox show 1 --payload", ("ferryman_monitor", "ferryman_relay")),
        ("outbox rebase --new-cluster --yes --reason r", ("ferryman_monitor", "ferryman_relay")),
        ("pause orders --reason r", ("ferryman_monitor", "ferryman_relay")),
        ("pause billing --consumer --reason r", ("ferryman_monitor", "ferryman_consumer")),
        ("migrate", ("ferryman_relay", "the owner of the database")),
    ],
)
def test_a_command_names_the_login_and_the_role_it_needs(
    ferryman_db: Database, login: Login, refused: Refused, command: str, roles: tuple[str, str]
) -> None:
    has, needs = roles
    ferryman_db.execute("SELECT ferryman.outbox_append('orders', 'k', 't', 'x')")
    ferryman_db.execute("UPDATE ferryman.outbox_state SET kafka_cluster = 'theirs'")
    url = login("shop", has)
    remedy = refused(url, *command.split())["remedy"]
    assert needs in remedy
    assert user_of(url) in remedy


def test_a_relay_names_the_login_and_the_role_it_needs(login: Login) -> None:
    url = login("shop")
    relay = JournalRelay(Settings(database_url=url, kafka=NOWHERE))
    with pytest.raises(Misconfigured) as problem, relay.sources[0].connect():
        pass
    assert f"GRANT ferryman_relay TO {user_of(url)}" in str(problem.value)


def test_a_login_that_has_the_role_is_told_that_the_role_lost_something(
    ferryman_db: Database, login: Login, refused: Refused
) -> None:
    ferryman_db.execute("REVOKE USAGE ON SCHEMA ferryman FROM ferryman_monitor")
    url = login("shop", "ferryman_monitor")
    remedy = refused(url, "outbox", "stats")["remedy"]
    assert "ferryman migrate" in remedy
    assert user_of(url) in remedy
    assert "GRANT ferryman_monitor" not in remedy


def test_a_consumer_under_another_login_is_told_the_role_that_it_is_bound_to(
    ferryman_db: Database, login: Login, refused: Refused
) -> None:
    other, own = login("other", "ferryman_consumer"), login("own")
    user = user_of(own)
    ferryman_db.execute("SELECT ferryman.bind('consumer', 'billing', %s::text::regrole)", (user,))
    consumer = Consumer("billing", topics=["orders"])
    consumer.handles("t")(lambda _db, _message: Done())
    service = ConsumerService(consumer, Settings(database_url=other, kafka=NOWHERE))
    with pytest.raises(Misconfigured) as problem:
        service.run(Life("billing", threading.Event()))
    assert f"GRANT {user} TO {user_of(other)}" in str(problem.value)
    told = refused(other, "pause", "billing", "--consumer", "--reason", "r")
    assert f"GRANT {user} TO {user_of(other)}" in told["remedy"]


def test_a_saga_is_moved_under_the_role_that_it_is_bound_to(
    ferryman_db: Database, login: Login, refused: Refused
) -> None:
    """A login that lacked a right on the table was told to get the role of all consumers."""
    ferryman_db.execute(table(ORDERS))
    other, own = login("other", "ferryman_consumer"), login("own")
    user = user_of(own)
    ferryman_db.execute("SELECT ferryman.bind('machine', 'orders', %s::text::regrole)", (user,))
    move = ("saga", "move", "support.orders:ORDERS", "--id", str(UUID(int=1)), "--yes", "--reason", "r")
    assert f"GRANT {user} TO {user_of(other)}" in refused(other, *move)["remedy"]
    told = refused(own, *move)["remedy"]
    assert "rights on tables of your own are yours to grant" in told
    assert "ferryman_consumer" not in told


def test_a_login_without_connect_is_told_so_and_ends_the_relay(
    ferryman_db: Database, login: Login, refused: Refused
) -> None:
    database = sql.Identifier(ferryman_db.info.dbname)
    ferryman_db.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(database))
    url = login("outsider")
    told = refused(url, "outbox", "stats")
    assert (told["setting"], "GRANT CONNECT ON DATABASE" in told["remedy"]) == (postgres.URL, True)
    with pytest.raises(Misconfigured):
        JournalRelay(Settings(database_url=url, kafka=NOWHERE)).run(Life("relay", threading.Event()))


def test_a_wrong_url_of_a_source_names_its_setting(
    ferryman_database_url: str, login: Login, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = wrong(login("billing", "ferryman_relay"))
    sources = {"shop": {"database_url": ferryman_database_url}, "billing": {"database_url": url}}
    setting = "relay.sources.billing.database_url"
    relay = JournalRelay(Settings(relay=Relay.model_validate({"sources": sources}), kafka=NOWHERE))
    with pytest.raises(Misconfigured) as problem, relay.sources[1].connect():
        pass
    assert problem.value.setting == setting
    monkeypatch.setenv("FERRYMAN_RELAY__SOURCES", json.dumps(sources))
    assert run(["outbox", "stats", "--source", "billing", "--json"]) == Exit.CONFIGURATION
    assert json.loads(capsys.readouterr().out)["error"]["setting"] == setting


def test_the_doctor_checks_every_source(ferryman_database_url: str, login: Login) -> None:
    url = wrong(login("billing", "ferryman_relay"))
    sources = {"shop": {"database_url": ferryman_database_url}, "billing": {"database_url": url}}
    found = checks(Settings(relay=Relay.model_validate({"sources": sources})))
    assert found["relay.sources.shop.reached"].status is Status.OK
    assert found["relay.sources.shop.migrations"].status is Status.OK
    assert found["relay.sources.billing.reached"].setting == "relay.sources.billing.database_url"
    assert "postgresql.reached" not in found


def test_the_doctor_fails_for_a_database_that_was_copied_from_another_server(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    settings = Settings(database_url=ferryman_database_url)
    assert checks(settings)["postgresql.server"].status is Status.OK
    ferryman_db.execute("UPDATE ferryman.outbox_state SET system_identifier = 1")
    server = checks(settings)["postgresql.server"]
    assert server.status is Status.FAILED
    assert "outbox rebase" in str(server.remedy)


def test_the_doctor_fails_for_an_outbox_that_is_bound_to_another_kafka_cluster(
    ferryman_db: Database, ferryman_database_url: str, ferryman_kafka: str
) -> None:
    settings = Settings(database_url=ferryman_database_url, kafka=Kafka(bootstrap_servers=ferryman_kafka))
    assert checks(settings)["postgresql.cluster"].status is Status.OK
    assert ferryman_db.execute("SELECT kafka_cluster FROM ferryman.outbox_state").fetchone() == (None,)
    ferryman_db.execute("UPDATE ferryman.outbox_state SET kafka_cluster = 'theirs'")
    assert checks(settings)["postgresql.cluster"].status is Status.FAILED


@pytest.mark.parametrize(
    ("command", "roles"),
    [
        ("stats --outbox memos", ("ferryman_memos", "ferryman_monitor")),
        ("show 1f0db1ec-0000-4000-8000-000000000000 --outbox memos", ("ferryman_memos_worker", "ferryman_monitor")),
        (
            "show 1f0db1ec-0000-4000-8000-000000000000 --outbox memos --payload",
            ("ferryman_monitor", "ferryman_memos_worker"),
        ),
        ("replay --status FAILED --outbox memos", ("ferryman_monitor", "ferryman_memos_worker")),
        (
            "resolve memos --id 1f0db1ec-0000-4000-8000-000000000000 --sent --reason r",
            ("ferryman_monitor", "ferryman_memos_worker"),
        ),
    ],
)
def test_a_command_on_the_mails_of_memos_names_the_role_that_it_needs(
    ferryman_db: Database, login: Login, refused: Refused, monkeypatch: pytest.MonkeyPatch, *, command: str,
    roles: tuple[str, str],
) -> None:  # fmt: skip
    """The monitor's role may read no text of mails, and is not that of couriers of other outboxes."""
    monkeypatch.setenv("FERRYMAN_EMAIL__PROVIDER", "file")
    memo = "INSERT INTO memos.memos (memo_number_prefix, department_code, title) VALUES ('HR', 'd', 't') RETURNING id"
    ferryman_db.execute(
        f"WITH memo AS ({memo}) INSERT INTO memos.email_outbox (id, memo_id, event_type, payload, recipient_email, "
        "notification_type) SELECT '1f0db1ec-0000-4000-8000-000000000000', id, 'memo.created', '{}', 'a@b.c', 'M' "
        "FROM memo"
    )
    has, needs = roles
    url = login("operator", has)
    found = refused(url, "outbox", *command.split())
    assert found["remedy"].startswith(f"GRANT {needs} TO {user_of(url)}")


def test_a_login_that_may_not_connect_is_told_why(
    ferryman_db: Database, login: Login, refused: Refused, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Not that PostgreSQL is away: somebody would look for a server that runs."""
    url = login("clerk", "ferryman_monitor")
    user = sql.Identifier(user_of(url))
    ferryman_db.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT 0").format(user))
    monkeypatch.setenv("FERRYMAN_DATABASE_URL", url)
    assert run(["outbox", "stats", "--json"]) == Exit.UNREACHABLE
    assert "CONNECTION LIMIT" in json.loads(capsys.readouterr().out)["error"]["remedy"]
    ferryman_db.execute(sql.SQL("ALTER ROLE {} NOLOGIN CONNECTION LIMIT -1").format(user))
    assert refused(url, "outbox", "stats")["remedy"].endswith("LOGIN")
