"""`ferryman dead-letters`, as an operator runs it under the role alone. No Kafka is needed."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from ferryman import use_schemas
from ferryman.schemas import active
from ferryman.testing import stack
from support.launch import Launcher
from support.operating import Operator
from support.webhooking import MONITOR, OPERATOR, Database, DeliveryDesk, subscribe

URL = "https://example.com/hooks"
YES = ("--yes", "--reason", "the endpoint is up again")


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[DeliveryDesk]:
    use_schemas()
    yield DeliveryDesk(ferryman_db)
    active.forget()


@pytest.fixture
def operator(ferryman: Launcher, ferryman_database_url: str) -> Operator:
    return Operator(
        ferryman, FERRYMAN_DATABASE_URL=stack.login(ferryman_database_url, f"o_{uuid4().hex[:8]}", OPERATOR)
    )


def dead(desk: DeliveryDesk, subscription: int, code: str = "SERVER_FAILED") -> int:
    saga = desk.routed(subscription)
    desk.apply(desk.end(saga, code))
    return saga


def audited(db: Database) -> list[tuple[str, str, int]]:
    return db.execute("SELECT act, reason, entries FROM ferryman.outbox_audit ORDER BY id").fetchall()


def test_an_operator_requeues_what_the_commands_show(operator: Operator, desk: DeliveryDesk) -> None:
    """Dry run first; then once, with an audit. N13: list and show say the same."""
    subscription = subscribe(desk.db, URL, max_retry_limit=1)
    first, second = dead(desk, subscription), dead(desk, subscription, "GONE")
    listed = operator.run("dead-letters list --json").json
    assert [(each["id"], each["error_code"]) for each in listed["letters"]] == [
        (second, "GONE"),
        (first, "SERVER_FAILED"),
    ]
    shown = operator.run(f"dead-letters show {first} --json").json
    assert [[each["code"] for each in job["attempts"]] for job in shown["jobs"]] == [["SERVER_FAILED"]]
    assert shown["next"] == f"ferryman dead-letters requeue --id {first}"
    plan = operator.run("dead-letters requeue --code server_failed --json").json
    assert (plan["dry_run"], plan["by_code"]) == (True, {"SERVER_FAILED": 1})
    assert audited(desk.db) == []
    done = operator.run("dead-letters requeue --code SERVER_FAILED --json", *YES).json
    [made] = done["requeued"]
    assert made["id"] == first
    assert desk.stands(made["requeued_as"]) == ("Pending", 0, None)
    assert audited(desk.db) == [("requeue", YES[-1], 1)]
    told = operator.run(f"dead-letters show {first}")
    assert f"ferryman saga show webhooks {made['requeued_as']}" in told.stdout


def test_a_letter_that_is_put_aside_can_be_requeued_by_its_id(operator: Operator, desk: DeliveryDesk) -> None:
    saga = dead(desk, subscribe(desk.db, URL, max_retry_limit=1))
    operator.run(f"dead-letters discard --id {saga}", *YES)
    assert operator.run("dead-letters list --state discarded --json").json["letters"][0]["reason"] == YES[-1]
    operator.run(f"dead-letters discard --id {saga}", *YES, exit_code=1)
    assert operator.run("dead-letters requeue --from 1d --json", *YES).json["letters"] == 0
    assert operator.run(f"dead-letters requeue --id {saga} --json", *YES).json["letters"] == 1
    operator.run(f"dead-letters requeue --id {saga}", *YES, exit_code=1)
    assert [act for act, _, _ in audited(desk.db)] == ["discard", "requeue"]


def test_letters_of_a_disabled_subscription_are_left_and_the_exit_code_says_so(
    operator: Operator, desk: DeliveryDesk
) -> None:
    subscription, other = (subscribe(desk.db, URL, name, max_retry_limit=1) for name in ("a", "b"))
    left, again = dead(desk, subscription), dead(desk, other)
    desk.db.execute("UPDATE webhooks.subscriptions SET active = false WHERE id = %s", (subscription,))
    done = operator.run("dead-letters requeue --from 1d --json", *YES, exit_code=5).json
    assert ([each["id"] for each in done["requeued"]], done["disabled"]) == ([again], 1)
    operator.run(f"dead-letters requeue --id {left}", *YES, exit_code=1)
    assert "enable it" in operator.run(f"dead-letters show {left}").stdout


def test_requeue_keeps_its_rate(operator: Operator, desk: DeliveryDesk) -> None:
    """Six letters, two a second: the last two come two seconds after the first two."""
    subscription = subscribe(desk.db, URL, max_retry_limit=1)
    for _ in range(6):
        dead(desk, subscription)
    assert operator.run("dead-letters requeue --from 1d --rate 2 --json", *YES).json["letters"] == 6
    assert audited(desk.db) == [("requeue", YES[-1], 2)] * 3
    took = desk.db.execute("SELECT extract(epoch FROM max(at) - min(at))::float8 FROM ferryman.outbox_audit").fetchone()
    assert took is not None
    assert took[0] >= 1.8


def test_what_is_wrong_is_said_with_its_exit_code(
    operator: Operator, desk: DeliveryDesk, ferryman_database_url: str, ferryman: Launcher
) -> None:
    operator.run("dead-letters requeue", *YES, exit_code=2)
    operator.run("dead-letters requeue --code GONE --yes", exit_code=2)
    operator.run("dead-letters show 4711", exit_code=1)
    saga = dead(desk, subscribe(desk.db, URL, max_retry_limit=1))
    login = stack.login(ferryman_database_url, f"m_{uuid4().hex[:8]}", MONITOR)
    monitor = Operator(ferryman, FERRYMAN_DATABASE_URL=login)
    assert monitor.run(f"dead-letters show {saga} --json").json["state"] == "waiting"
    refused = monitor.run(f"dead-letters discard --id {saga}", *YES, exit_code=3)
    assert OPERATOR in refused.stderr


def test_without_the_schema_of_webhooks_the_commands_name_the_migration(
    ferryman: Launcher, ferryman_postgres: str
) -> None:
    url = stack.new_database(ferryman_postgres, f"bare_{uuid4().hex[:10]}")
    stack.migrate(url, ["engine"])
    told = Operator(ferryman, FERRYMAN_DATABASE_URL=url).run("dead-letters list", exit_code=3)
    assert "--for webhooks" in told.stderr
