"""The gauges of webhooks: dead letters that wait, paused and disabled endpoints, events that are not routed."""

import re
import threading
from collections.abc import Iterator

import psycopg
import pytest

from ferryman import use_schemas
from ferryman.runtime.chore import ChoreService
from ferryman.runtime.life import Life
from ferryman.runtime.metrics import REGISTRY
from ferryman.runtime.settings import Settings
from ferryman.schemas import active
from ferryman.services.webhooks.orchestrator import NUMBERS, ROUTING, routing
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings
from ferryman.testing import stack
from support.compose import ROOT
from support.published import poll_until
from support.webhooking import ORCHESTRATOR, Database, DeliveryDesk, publish, subscribe


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[DeliveryDesk]:
    use_schemas()
    yield DeliveryDesk(ferryman_db)
    active.forget()


def measured() -> dict[str, float | None]:
    return {each: REGISTRY.get_sample_value("ferryman_chore_measured", {"chore": ROUTING, "what": each})
            for each in NUMBERS}  # fmt: skip


def test_running_chore_shows_its_numbers(ferryman_database_url: str) -> None:
    """The alerts ask for these labels."""
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    assert set(re.findall(r'ferryman_chore_measured\{chore="([^"]+)"', alerts)) == {ROUTING}
    assert set(re.findall(r'what="([^"]+)"', alerts)) < set(NUMBERS)
    assert re.findall(r'absent\(ferryman_ready\{service="(webhooks[^"]*)"', alerts) == [ROUTING]
    life = Life(ROUTING, threading.Event())
    settings = Settings.model_validate({"database_url": ferryman_database_url})
    running = threading.Thread(target=ChoreService(routing(WebhooksSettings()), settings).run, args=(life,))
    running.start()
    poll_until(lambda: measured()["dead_letters"] == 0, "numbers")
    life.stopping.set()
    running.join()


def test_numbers_are_what_waits_for_a_person(desk: DeliveryDesk, ferryman_database_url: str) -> None:
    """N13: under the orchestrator's role. A letter that was requeued waits for nobody."""
    login = stack.login(ferryman_database_url, "numbers", ORCHESTRATOR)
    with psycopg.connect(login, autocommit=True) as orchestrator:

        def numbers() -> list[float | None]:
            routing(desk.settings).measure(orchestrator, Settings())
            return list(measured().values())

        assert numbers() == [0, 0, 0, 0]
        sagas = [desk.routed(max_retry_limit=1) for _ in range(2)]
        for each in sagas:
            desk.apply(desk.end(each, "GONE"))
        for change in ("paused = true", "active = false", "active = false, paused = true"):
            subscription = subscribe(desk.db, "https://a.example", "other")
            desk.db.execute(f"UPDATE webhooks.subscriptions SET {change} WHERE id = %s", (subscription,))
        assert numbers() == [2, 1, 2, 0]
        desk.db.execute("SELECT webhooks.requeue(%s, 'ann', 'it is up')", (sagas[:1],))
        publish(desk.db)
        waiting = numbers()
        assert waiting[:3] == [1, 1, 2]
        assert 0 < (waiting[3] or 0) < 60
        desk.route()
        assert numbers()[3] == 0
