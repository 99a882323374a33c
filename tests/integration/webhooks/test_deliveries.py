"""The rules of the document on real tables: routing, jobs, results, retries, limits and dead letters."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman import use_schemas
from ferryman.runtime.settings import Settings
from ferryman.saga.timeouts import DueLoop
from ferryman.schemas import active
from ferryman.services.webhooks import orchestrator
from ferryman.services.webhooks.machine import SUCCEEDED
from support.published import poll_until
from support.webhooking import Database, DeliveryDesk, publish, stray_reasons, subscribe, told, waits_for_a_lock

SAGAS = "webhooks.webhook_delivery_sagas"
JOB = "INSERT INTO webhooks.webhook_delivery_jobs (saga_id, attempt, event_id, subscription_id) VALUES (%s, %s, 1, 1)"


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[DeliveryDesk]:
    use_schemas()
    yield DeliveryDesk(ferryman_db)
    active.forget()


def messages(db: Database) -> list[str]:
    return [kind for (kind,) in db.execute("SELECT type FROM ferryman.outbox ORDER BY position").fetchall()]


def letters(db: Database) -> list[tuple[int, int, str]]:
    return db.execute("SELECT saga_id, attempts, error_code FROM webhooks.dead_letters ORDER BY id").fetchall()


# --- 2.3: routing


def test_an_event_is_routed_to_each_active_subscription_that_wants_it(desk: DeliveryDesk) -> None:
    wanting = [subscribe(desk.db, "https://a.example", "order.paid", "order.sent") for _ in range(3)]
    subscribe(desk.db, "https://b.example", "order.sent")
    subscribe(desk.db, "https://c.example", active=False)
    event, unwanted = publish(desk.db), publish(desk.db, event_type="nobody.wants")
    assert desk.route() is False
    found = desk.db.execute(f"SELECT event_id, subscription_id FROM {SAGAS} ORDER BY subscription_id").fetchall()
    assert found == [(event, each) for each in wanting]
    assert unwanted
    assert desk.db.execute("SELECT count(*) FROM webhooks.unrouted").fetchone() == (0,)


def test_rule_2_3_an_event_that_is_routed_twice_makes_no_second_saga(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    desk.apply(desk.end(saga))
    desk.db.execute(f"INSERT INTO webhooks.unrouted SELECT event_id FROM {SAGAS}")
    desk.route()
    assert desk.db.execute(f"SELECT id, status::text FROM {SAGAS}").fetchall() == [(saga, "Completed")]


def test_rule_2_3_an_event_that_is_older_than_the_archive_is_not_routed_again(desk: DeliveryDesk) -> None:
    saga = desk.routed(max_retry_limit=1)
    desk.apply(desk.end(saga, "GONE"))
    desk.db.execute("SELECT webhooks.archive(now() + '1 s', 'ada', 'tidying')")
    for table in (SAGAS, "webhooks.webhook_delivery_jobs", "webhooks.dead_letters"):
        assert desk.db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    with pytest.raises(psycopg.errors.IntegrityError, match="is not routed again"):
        desk.db.execute("INSERT INTO webhooks.unrouted SELECT id FROM webhooks.events")
    assert desk.routed(1)


def test_routing_takes_events_in_portions(desk: DeliveryDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """N12: one transaction makes a bounded number of deliveries, and an event is never routed in part."""
    monkeypatch.setattr(orchestrator, "PORTION", 3)
    for _ in range(2):
        subscribe(desk.db, "https://a.example")
    for _ in range(3):
        publish(desk.db)
    turns = [desk.route() for _ in range(4)]
    assert turns == [True, True, True, False]
    assert desk.db.execute(f"SELECT count(*) FROM {SAGAS}").fetchone() == (6,)


# --- 3, 7, 8: jobs and results


def test_rule_7_2_a_new_delivery_gets_its_first_job(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    assert desk.stands(saga) == ("InProgress", 0, None)
    assert desk.jobs(saga) == [(1, "Pending")]


def test_rule_7_1_a_second_active_job_is_refused_by_the_table(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    with pytest.raises(psycopg.errors.UniqueViolation, match="one_active_job"):
        desk.db.execute(JOB, (saga, 2))
    desk.end(saga, "GONE")
    with pytest.raises(psycopg.errors.UniqueViolation, match="job_once"):
        desk.db.execute(JOB, (saga, 1))


def test_rule_7_1_a_job_that_is_over_is_never_used_again(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    desk.end(saga)
    for change in ("status = 'Pending'", "status = 'Failed'", "claims = 7", "error = 'other'"):
        with pytest.raises(psycopg.errors.IntegrityError, match="what is Completed is over"):
            desk.db.execute(f"UPDATE webhooks.webhook_delivery_jobs SET {change}")
    with pytest.raises(psycopg.errors.IntegrityError):
        desk.db.execute("DELETE FROM webhooks.webhook_delivery_jobs")


def test_rule_8_2_success_completes_and_leaves_the_last_code(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    assert desk.apply(desk.end(saga, "TIMED_OUT")) == ["applied"]
    assert desk.stands(saga) == ("PendingRetry", 1, "TIMED_OUT")
    desk.due()
    assert desk.apply(desk.end(saga)) == ["applied"]
    assert desk.stands(saga) == ("Completed", 2, "TIMED_OUT")
    assert desk.jobs(saga) == [(1, "Failed"), (2, "Completed")]
    assert messages(desk.db) == ["webhook.delivered"]


@pytest.mark.parametrize("own", [None, {"base_seconds": 7.0, "cap_seconds": 20.0}])
def test_rule_6_2_waits_follow_the_formula_with_the_subscriptions_own_values(
    desk: DeliveryDesk, own: dict[str, Any] | None
) -> None:
    saga = desk.routed(**(own or {}))
    waits = []
    for _ in range(3):
        desk.apply(desk.end(saga, "GONE"))
        row = desk.db.execute(
            f"SELECT extract(epoch FROM next_attempt_at - updated_at)::float8 FROM {SAGAS}"
        ).fetchone()
        assert row is not None
        waits.append(round(row[0], 2))
        desk.due()
    assert waits == ([7, 14, 20] if own else [10, 20, 40])


def test_rule_5_3_no_job_is_made_before_its_time(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    desk.apply(desk.end(saga, "GONE"))
    assert desk.due(hastened=False) == 0
    assert desk.jobs(saga) == [(1, "Failed")]


def test_rule_8_1_the_failure_that_exhausts_the_limit_dead_letters_in_one_transaction(desk: DeliveryDesk) -> None:
    desk.db.execute("CREATE TABLE passed (status text)")
    desk.db.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO passed VALUES (NEW.status); RETURN NULL; END $$; "
        f"CREATE TRIGGER noted AFTER UPDATE ON {SAGAS} FOR EACH ROW EXECUTE FUNCTION note()"
    )
    saga = desk.routed(max_retry_limit=2)
    desk.apply(desk.end(saga, "GONE"))
    desk.due()
    assert desk.apply(desk.end(saga, "TIMED_OUT")) == ["applied"]
    assert desk.stands(saga) == ("DeadLettered", 2, "TIMED_OUT")
    assert letters(desk.db) == [(saga, 2, "TIMED_OUT")]
    assert messages(desk.db) == ["webhook.dead-lettered"]
    passed = [status for (status,) in desk.db.execute("SELECT status FROM passed").fetchall()]
    assert passed[-2:] == ["PendingRetry", "DeadLettered"]


def test_rule_8_1_without_its_dead_letter_no_delivery_is_given_up(desk: DeliveryDesk) -> None:
    saga = desk.routed(max_retry_limit=1)
    desk.db.execute("ALTER TABLE webhooks.dead_letters ADD CHECK (attempts > 5)")
    with pytest.raises(psycopg.errors.CheckViolation):
        desk.apply(desk.end(saga, "GONE"))
    assert desk.stands(saga) == ("InProgress", 0, None)
    assert messages(desk.db) == []


def test_an_error_code_is_cut_to_its_column(desk: DeliveryDesk) -> None:
    """N10: otherwise one result would stop its batch."""
    saga = desk.routed()
    assert desk.apply(desk.end(saga, "x" * 300)) == ["applied"]
    assert desk.stands(saga) == ("PendingRetry", 1, "x" * 100)


# --- 6.4: results twice, late, forged


def test_rule_6_4_a_result_that_comes_twice_counts_once(desk: DeliveryDesk) -> None:
    """N3: under its own id the inbox drops it; under another one the delivery does."""
    saga = desk.routed()
    failed = desk.end(saga, "GONE")
    assert desk.apply(failed, failed) == ["applied", "LATE"]
    desk.due()
    assert desk.apply(failed) == ["LATE"]
    assert desk.stands(saga) == ("InProgress", 1, "GONE")


def test_results_that_come_in_another_order_are_applied_once(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    first = desk.end(saga, "GONE")
    desk.apply(first)
    desk.due()
    second = desk.end(saga)
    assert desk.apply(second, first) == ["applied", "LATE"]
    assert desk.stands(saga) == ("Completed", 2, "GONE")


def test_forged_results_move_nothing_and_are_kept(desk: DeliveryDesk) -> None:
    """N7: of an unknown job, of another delivery's, of one that is not over, or with another end than its job's."""
    saga, other = desk.routed(), desk.routed()
    of_other = desk.end(other)
    data = {**of_other.data, "saga_id": saga, "event_id": 1, "subscription_id": 1}
    job = {"saga_id": saga, "event_id": 1, "subscription_id": 1, "job_id": 1, "attempt": 1}
    for forged in (data, {**data, "job_id": 4711}, {**data, **job}, {**data, **job, "attempt": 2}):
        assert desk.apply(told(SUCCEEDED, forged)) == ["FORGED"]
    honest = desk.end(saga, "GONE")
    assert desk.apply(told(SUCCEEDED, honest.data)) == ["FORGED"]
    assert desk.apply(told(SUCCEEDED, {**data, "saga_id": 4711, "job_id": 99})) == ["UNKNOWN"]
    assert desk.stands(saga) == ("InProgress", 0, None)
    assert desk.apply(honest) == ["applied"]
    assert {why for _, why in stray_reasons(desk.db)} == {"FORGED", "UNKNOWN"}


# --- lost results, lowered limits, disabled subscriptions


@pytest.mark.parametrize(("code", "stands"), [(None, "Completed"), ("GONE", "PendingRetry")])
def test_a_delivery_whose_result_was_lost_is_healed_from_its_job(
    desk: DeliveryDesk, code: str | None, stands: str
) -> None:
    """N1, N11: the result that comes after all is late."""
    saga = desk.routed()
    lost = desk.end(saga, code)
    desk.due()
    assert desk.stands(saga) == (stands, 1, code)
    assert desk.apply(lost) == ["LATE"]
    assert desk.stands(saga) == (stands, 1, code)


def test_a_delivery_whose_job_is_under_way_is_looked_at_again_later(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    desk.due()
    assert desk.stands(saga) == ("InProgress", 0, None)
    assert desk.due(hastened=False) == 0


def test_rule_6_3_a_limit_that_is_lowered_dead_letters_what_is_beyond_it(desk: DeliveryDesk) -> None:
    saga = desk.routed()
    for _ in range(2):
        desk.apply(desk.end(saga, "GONE"))
        desk.due()
    desk.apply(desk.end(saga, "GONE"))
    desk.db.execute("UPDATE webhooks.subscriptions SET max_retry_limit = 2")
    desk.due()
    assert desk.stands(saga) == ("DeadLettered", 3, "GONE")
    assert letters(desk.db) == [(saga, 3, "GONE")]
    assert desk.jobs(saga)[-1] == (3, "Failed")


def test_deliveries_of_a_disabled_subscription_end_as_dead_letters(desk: DeliveryDesk) -> None:
    """Whatever state each is in; the one without a job passes through one that fails without a send."""
    subscription = subscribe(desk.db, "https://example.com/hooks")
    waiting, asked = desk.routed(subscription), desk.routed(subscription)
    desk.apply(desk.end(waiting, "GONE"))
    publish(desk.db)
    desk.route()
    desk.db.execute("UPDATE webhooks.subscriptions SET active = false")
    desk.due()
    new = desk.db.execute(f"SELECT max(id) FROM {SAGAS}").fetchone()
    assert new is not None
    desk.apply(desk.end(asked, "SUBSCRIPTION_DISABLED"))
    for each in (waiting, asked, new[0]):
        assert desk.stands(each) == ("DeadLettered", 1, "SUBSCRIPTION_DISABLED")
    assert desk.jobs(new[0]) == [(1, "Failed")]
    assert len(letters(desk.db)) == 3


# --- 5.4, 5.5, 10.2: what is over


@pytest.mark.parametrize("code", [None, "GONE"])
def test_rules_5_4_and_5_5_no_column_of_a_delivery_that_is_over_ever_changes(
    desk: DeliveryDesk, code: str | None
) -> None:
    """N7: for the owner too."""
    saga = desk.routed(max_retry_limit=1)
    desk.apply(desk.end(saga, code))
    row = desk.db.execute(f"SELECT * FROM {SAGAS}").fetchall()
    columns = desk.db.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", (SAGAS,)
    ).fetchall()
    for (column,) in columns:
        with pytest.raises(psycopg.errors.IntegrityError):
            desk.db.execute(f"UPDATE {SAGAS} SET {column} = {column}")
    desk.due()
    assert desk.db.execute(f"SELECT * FROM {SAGAS}").fetchall() == row


REQUEUE = "SELECT webhooks.requeue(%s, 'ann', 'it is up again')"


def test_rule_7_4_a_dead_delivery_is_requeued_once_as_a_new_one(desk: DeliveryDesk) -> None:
    """N7: the dead one is never touched, and the audit knows who did it."""
    saga, alive = desk.routed(max_retry_limit=1), desk.routed(subscribe(desk.db, "https://example.com/hooks", "other"))
    desk.apply(desk.end(saga, "GONE"))
    before = desk.db.execute(f"SELECT * FROM {SAGAS} WHERE id = %s", (saga,)).fetchall()
    [(new,)] = desk.db.execute(REQUEUE, ([saga, alive, 4711],)).fetchall()
    assert desk.stands(new) == ("Pending", 0, None)
    assert desk.db.execute(f"SELECT generation, requeued_from FROM {SAGAS} WHERE id = %s", (new,)).fetchall() == [
        (1, saga)
    ]
    assert desk.db.execute(REQUEUE, ([saga, alive],)).fetchall() == []
    audit = desk.db.execute("SELECT who, act, reason, filter -> 'dead', entries FROM ferryman.outbox_audit").fetchall()
    assert audit == [("ann", "requeue", "it is up again", [saga], 1)]
    desk.due()
    desk.apply(desk.end(new))
    assert desk.stands(new)[0] == "Completed"
    assert desk.db.execute(f"SELECT * FROM {SAGAS} WHERE id = %s", (saga,)).fetchall() == before


def test_requeue_that_is_pressed_twice_at_once_makes_one_delivery(
    desk: DeliveryDesk, ferryman_database_url: str
) -> None:
    """N6: the second waits for the first, and finds that there is nothing left to do."""
    saga = desk.routed(max_retry_limit=1)
    desk.apply(desk.end(saga, "GONE"))
    with psycopg.connect(ferryman_database_url) as first, ThreadPoolExecutor() as threads:
        assert len(first.execute(REQUEUE, ([saga],)).fetchall()) == 1
        second = threads.submit(lambda: desk.db.execute(REQUEUE, ([saga],)).fetchall())
        poll_until(lambda: waits_for_a_lock(first), "the second one's wait")
        first.commit()
        assert second.result(10) == []
    assert desk.db.execute(f"SELECT count(*) FROM {SAGAS}").fetchone() == (2,)


@pytest.mark.parametrize("more", [2, 1], ids=["of a later generation", "behind one that is not dead"])
def test_a_delivery_that_stands_behind_no_dead_one_is_refused_for_every_role(desk: DeliveryDesk, more: int) -> None:
    saga = desk.routed(max_retry_limit=1)
    if more > 1:
        desk.apply(desk.end(saga, "GONE"))
    with pytest.raises(psycopg.errors.IntegrityError, match="only a dead delivery"):
        desk.db.execute(
            f"INSERT INTO {SAGAS} (event_id, subscription_id, next_attempt_at, generation, requeued_from) "
            f"SELECT event_id, subscription_id, now(), %s, id FROM {SAGAS}", (more,),
        )  # fmt: skip


# --- 10: no other delivery waits for one that fails


def test_a_delivery_that_cannot_be_moved_stops_no_other(desk: DeliveryDesk) -> None:
    """N10: a job that nobody may have made refuses the next one; the other deliveries go on."""
    bad = desk.routed(subscription := subscribe(desk.db, "https://example.com/hooks"))
    good = desk.routed(subscription)
    desk.apply(desk.end(bad, "GONE"), desk.end(good, "GONE"))
    desk.db.execute(JOB, (bad, 9))
    desk.db.execute(f"UPDATE {SAGAS} SET next_attempt_at = now()")
    with capture_logs() as logs:
        assert DueLoop(desk.engine, Settings()).turn(desk.db) == 1
    assert [desk.stands(each)[0] for each in (bad, good)] == ["PendingRetry", "InProgress"]
    assert [each["saga"] for each in logs if each["event"] == "cannot be moved"] == [str(bad)]


def test_rule_2_2_the_indexes_have_the_names_of_the_document(desk: DeliveryDesk) -> None:
    found: dict[str, str] = dict(desk.db.execute(
        "SELECT indexname::text, indexdef FROM pg_indexes WHERE tablename = 'webhook_delivery_sagas'"
    ).fetchall())  # fmt: skip
    for name, columns in {
        "idx_saga_event": "(event_id, subscription_id)",
        "idx_saga_status_retry": "(status, next_attempt_at)",
        "idx_saga_status": "(status)",
        "uniq_saga_event_subscription": "(event_id, subscription_id, generation)",
    }.items():
        assert found[name].endswith(columns), name


# --- bad input


BAD = (
    "endpoint = 'example.com'", "endpoint = 'ftp://example.com/'", "endpoint = 'https://user:secret@example.com/'",
    "endpoint = 'https://'", "endpoint = 'https://example.com/ x'", "max_retry_limit = 0", "base_seconds = 0",
    "max_retry_limit = 1000000", "cap_seconds = 'infinity'", "event_types = '{}'", "event_types = '{NULL}'",
)  # fmt: skip


def test_a_bad_subscription_fails_its_writer(desk: DeliveryDesk) -> None:
    subscribe(desk.db, "https://example.com/hooks?x=1")
    for change in BAD:
        with pytest.raises(psycopg.errors.CheckViolation):
            desk.db.execute(f"UPDATE webhooks.subscriptions SET {change}")


def test_a_payload_over_the_limit_fails_its_writer(desk: DeliveryDesk) -> None:
    publish(desk.db, b"x" * 2**20)
    with pytest.raises(psycopg.errors.CheckViolation, match="payload_is_not_too_large"):
        publish(desk.db, b"x" * (2**20 + 1))
