"""Endpoints that are gone or only fail, judged by real rows under the subscription manager's role."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ferryman import Received, use_schemas
from ferryman.runtime.settings import Settings
from ferryman.schemas import active
from ferryman.services.webhooks.endpoints import SUCCESSES, endpoints
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings
from ferryman.testing import stack
from support.published import poll_until
from support.webhooking import MANAGER, Database, DeliveryDesk, subscribe, waits_for_a_lock

URL = "https://example.com/hooks"
AFTER = 3600.0


class HourSettings(Settings):
    """Settings in which an endpoint may fail for an hour."""

    webhooks: WebhooksSettings = WebhooksSettings(disable_after_seconds=AFTER)


@dataclass
class EndpointsDesk:
    """The consumer's handlers, on a connection of its role."""

    desk: DeliveryDesk
    db: Database

    def subscription(self) -> int:
        """Add a subscription whose endpoint was enabled long ago."""
        made = subscribe(self.desk.db, URL, str(uuid4()))
        self.desk.db.execute("UPDATE webhooks.subscriptions SET enabled_at = now() - interval '10 d'")
        return made

    def told(self, *results: Received) -> list[Any]:
        """Handle results as the consumer does. Return the reports of all."""
        with self.db.transaction():
            handler = endpoints(HourSettings()).handlers[results[0].type]
            return [report for outcome in handler(self.db, results) for report in outcome.reports]  # type: ignore[union-attr]

    def stands(self, subscription: int) -> tuple[bool, str | None, bool]:
        """Return whether it is active, the reason if not, and whether it is known to fail."""
        row = self.db.execute(
            "SELECT active, disabled_reason, failing_since IS NOT NULL FROM webhooks.subscriptions WHERE id = %s",
            (subscription,),
        ).fetchone()
        assert row is not None
        return row


@pytest.fixture
def watch(ferryman_db: Database, ferryman_database_url: str) -> Iterator[EndpointsDesk]:
    use_schemas()
    login = stack.login(ferryman_database_url, f"endpoints_{uuid4().hex[:8]}", MANAGER)
    with psycopg.connect(login, autocommit=True) as db:
        yield EndpointsDesk(DeliveryDesk(ferryman_db), db)
    active.forget()


def ended(watch: EndpointsDesk, subscription: int, code: str | None = "SERVER_FAILED", **more: Any) -> Received:
    """Return the result of an attempt of a new delivery."""
    return watch.desk.end(watch.desk.routed(subscription), code, **more)


def gone(watch: EndpointsDesk, subscription: int, **more: Any) -> Received:
    return ended(watch, subscription, "GONE", http_status=410, **more)


def test_an_endpoint_that_answers_410_is_disabled_with_a_message(watch: EndpointsDesk) -> None:
    subscription, other = watch.subscription(), watch.subscription()
    first, second = gone(watch, subscription), gone(watch, subscription)
    [report] = watch.told(first, second, ended(watch, other))
    assert watch.stands(subscription) == (False, "GONE", True)
    assert watch.stands(other) == (True, None, True)
    assert (report.type, report.key) == ("webhook.subscription-disabled", str(subscription))
    assert (report.data["subscription_id"], report.data["reason"]) == (subscription, "GONE")
    assert report.data["disabled_at"] >= report.data["failing_since"]
    assert watch.told(first, second) == []


def test_an_endpoint_that_only_fails_for_too_long_is_disabled(watch: EndpointsDesk) -> None:
    subscription = watch.subscription()
    results = [ended(watch, subscription, ago=ago) for ago in (AFTER + 10, AFTER, 20, 0)]
    assert watch.told(results[1]) == watch.told(results[0]) == watch.told(results[2]) == []
    assert watch.stands(subscription) == (True, None, True)
    [report] = watch.told(results[3])
    assert report.data["reason"] == "FAILING"
    assert watch.stands(subscription) == (False, "FAILING", True)


def test_a_success_whose_result_has_not_come_keeps_its_endpoint(watch: EndpointsDesk) -> None:
    """N11: another partition, or a relay that stands still, may hold it up for days."""
    subscription = watch.subscription()
    watch.told(ended(watch, subscription, ago=2 * AFTER))
    late = ended(watch, subscription, None, ago=AFTER / 2)
    assert watch.told(ended(watch, subscription)) == []
    assert watch.stands(subscription) == (True, None, True)
    assert watch.told(late) == []
    assert watch.stands(subscription) == (True, None, True)
    assert watch.told(ended(watch, subscription, None)) == []
    assert watch.stands(subscription) == (True, None, False)


def test_410_that_comes_after_a_later_success_disables_nothing(watch: EndpointsDesk) -> None:
    subscription = watch.subscription()
    late = gone(watch, subscription, ago=60)
    watch.told(ended(watch, subscription, None))
    assert watch.told(late) == []
    assert watch.stands(subscription) == (True, None, False)


@pytest.mark.parametrize("code", ["SUBSCRIPTION_DISABLED", "SECRET_MISSING", "WORKER_LOST", "CHANNEL_BUG"])
def test_failures_of_our_own_do_not_count(watch: EndpointsDesk, code: str) -> None:
    subscription = watch.subscription()
    assert watch.told(ended(watch, subscription, code, ago=2 * AFTER), ended(watch, subscription, code)) == []
    assert watch.stands(subscription) == (True, None, False)


def test_a_result_that_its_job_contradicts_does_not_count(watch: EndpointsDesk) -> None:
    """The job succeeded, or is under way, or is another subscription's, or there is none."""
    subscription, other = watch.subscription(), watch.subscription()
    good, bad = ended(watch, subscription, None), ended(watch, other)
    under_way = watch.desk.routed(subscription)
    [(active_job,)] = watch.desk.db.execute(
        "SELECT id FROM webhooks.webhook_delivery_jobs WHERE saga_id = %s", (under_way,)
    ).fetchall()
    forged = {**bad.data, "error_code": "GONE", "http_status": 410, "subscription_id": subscription}
    for job in (good.data["job_id"], active_job, bad.data["job_id"], 4711):
        result = Received(uuid4(), bad.type, {**forged, "job_id": job}, bad.key, bad.record, bad.hash)
        assert watch.told(bad, result) == []
    assert watch.stands(subscription) == (True, None, False)
    assert watch.stands(other)[0]


def test_a_subscription_that_is_enabled_again_begins_anew(watch: EndpointsDesk) -> None:
    """Results of attempts from before say nothing of it, and neither does one to the URL that it had before."""
    subscription = watch.subscription()
    late = gone(watch, subscription)
    watch.told(ended(watch, subscription, ago=2 * AFTER), ended(watch, subscription))
    assert watch.stands(subscription) == (False, "FAILING", True)
    watch.db.execute("UPDATE webhooks.subscriptions SET active = true")
    assert watch.stands(subscription) == (True, None, False)
    assert watch.told(late) == []
    watch.told(ended(watch, subscription))
    assert watch.stands(subscription) == (True, None, True)
    watch.db.execute("UPDATE webhooks.subscriptions SET endpoint = 'https://example.org/'")
    assert watch.stands(subscription) == (True, None, False)
    assert len(watch.told(gone(watch, subscription))) == 1


def test_a_subscription_that_a_person_disables_has_no_reason_of_ours(watch: EndpointsDesk) -> None:
    subscription = watch.subscription()
    late = gone(watch, subscription)
    watch.db.execute("UPDATE webhooks.subscriptions SET active = false")
    disabled = watch.db.execute("SELECT disabled_at FROM webhooks.subscriptions").fetchone()
    assert disabled != (None,)
    assert watch.told(late) == []
    assert watch.stands(subscription) == (False, None, False)


def test_two_processes_that_judge_the_same_endpoints_disable_each_once(
    watch: EndpointsDesk, ferryman_database_url: str
) -> None:
    """N6: the second waits, and finds that it is disabled. They lock in one order, whatever order results have."""
    first, second = watch.subscription(), watch.subscription()
    results = [gone(watch, each) for each in (first, second)]
    more = [gone(watch, each) for each in (second, first)]
    login = stack.login(ferryman_database_url, f"endpoints_{uuid4().hex[:8]}", MANAGER)
    with psycopg.connect(login) as db, ThreadPoolExecutor() as threads:
        there = EndpointsDesk(watch.desk, db)
        with db.transaction():
            assert len(there.told(*results)) == 2
            again = threads.submit(lambda: watch.told(*more))
            poll_until(lambda: waits_for_a_lock(db), "the second one's wait")
        assert again.result(10) == []


def test_the_last_success_is_one_look_at_an_index(watch: EndpointsDesk) -> None:
    """However many jobs an endpoint has had."""
    ended(watch, watch.subscription(), None)
    with psycopg.ClientCursor(watch.desk.db) as cursor:
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        plan = [line for (line,) in cursor.execute(f"EXPLAIN {SUCCESSES}", {"ids": [1]}).fetchall()]
    assert any("Scan Backward using jobs_succeeded" in line for line in plan), plan
    assert not any("Sort" in line or "Filter" in line for line in plan), plan
