"""The routes of webhooks: what is recorded, what is refused with which words, and what a client is shown."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ferryman import use_schemas
from ferryman.runtime.settings import Token
from ferryman.runtime.settings_http import Http
from ferryman.schemas import active
from ferryman.services.webhooks import dead_letters_api
from ferryman.testing import stack
from support.asking import Answer, Client, running, settings, sha256, until
from support.webhooking import MANAGER, OPERATOR, WRITER, Database, DeliveryDesk, publish, subscribe

SCOPES = {
    "shop": ("events:write",),
    "owner": ("subscriptions:write", "subscriptions:read"),
    "support": ("subscriptions:read", "deliveries:read"),
    "operator": ("dead-letters:read", "dead-letters:write"),
}
EVENT = {"type": "order.paid", "payload": {"order": 7}}
HOOK = {"endpoint": "https://hooks.example/in", "event_types": ["order.paid"]}
PROBLEM = "application/problem+json"


@pytest.fixture
def url(ferryman_database_url: str) -> str:
    """Return the URL of a login that has no other role than the API of webhooks needs."""
    made = stack.login(ferryman_database_url, f"api_{uuid4().hex[:8]}", WRITER)
    with psycopg.connect(ferryman_database_url) as db:
        db.execute(f"GRANT {MANAGER}, {OPERATOR} TO {psycopg.conninfo.conninfo_to_dict(made)['user']}")
    return made


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with serving(url) as made:
        yield made


@contextmanager
def serving(url: str, **webhooks: Any) -> Iterator[Client]:
    """Run the API with these settings under [webhooks]."""
    tokens = {name: Token(sha256=sha256(name), scopes=[*scopes]) for name, scopes in SCOPES.items()}
    api, http = {"tokens": tokens, "max_body_bytes": 4 << 20}, Http(allow=["10.1.0.0/16"], max_body_bytes=2 << 20)
    with running(settings(url, api=api, http=http, webhooks=webhooks)) as made:
        until(lambda: made.life.why_not_ready is None)
        yield made.client


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[DeliveryDesk]:
    use_schemas()
    yield DeliveryDesk(ferryman_db)
    active.forget()


def record(client: Client, **more: Any) -> Answer:
    return client.ask("POST", "/events", {**EVENT, **more})


def create(client: Client, **more: Any) -> Answer:
    return client.ask("POST", "/subscriptions", {**HOOK, **more}, by="owner")


def stored(db: Database) -> list[tuple[str, bytes, str]]:
    return db.execute("SELECT type, payload, content_type FROM webhooks.events ORDER BY id").fetchall()


# --- events


def test_event_is_recorded_as_compact_json_or_as_its_bytes(client: Client, ferryman_db: Database) -> None:
    made = record(client, payload={"text": "grüße", "n": [1, 2.5, None]})
    assert (made.status, made.json["type"]) == (201, "order.paid")
    raw = {"type": "order.paid", "payload_base64": base64.b64encode(b"\xff\0").decode(), "content_type": "image/png"}
    assert client.ask("POST", "/events", raw).status == 201
    assert record(client, payload=None).status == 201
    assert stored(ferryman_db) == [
        ("order.paid", '{"text":"grüße","n":[1,2.5,null]}'.encode(), "application/json"),
        ("order.paid", b"\xff\0", "image/png"),
        ("order.paid", b"null", "application/json"),
    ]
    assert ferryman_db.execute("SELECT count(*) FROM webhooks.unrouted").fetchone() == (3,)


WRONG_EVENTS: list[tuple[dict[str, Any], str]] = [
        ({"type": ""}, "type"), ({"type": "x" * 256}, "type"), ({"type": "a\0b"}, "type"), ({"type": 7}, "type"),
        ({"payload": float("nan")}, "payload"), ({"payload": {"a": float("inf")}}, "payload"),
        ({"payload": "half \ud800"}, "payload"), ({"payload_base64": "e30="}, "body"),
        ({"content_type": "json"}, "content_type"), ({"content_type": "a/b\r\nX: y"}, "content_type"),
        ({"content_type": "text/plain; x=é"}, "content_type"), ({"idempotency_key": ""}, "idempotency_key"),
        ({"only_for": 1}, "only_for"),
]  # fmt: skip


def test_event_that_could_not_be_sent_is_answered_422(client: Client, ferryman_db: Database) -> None:
    for wrong, field in WRONG_EVENTS:
        refused = record(client, **wrong)
        assert (refused.status, refused.headers["Content-Type"]) == (422, PROBLEM), wrong
        assert list(refused.wrong) == [field]
    for payload in ({}, {"payload_base64": "e30"}, {"payload_base64": None}):
        assert client.ask("POST", "/events", {"type": "order.paid", **payload}).status == 422, payload
    assert stored(ferryman_db) == []


def test_payload_over_the_limit_is_answered_413_with_the_sizes(client: Client, ferryman_db: Database) -> None:
    """Its JSON has two bytes more than the text."""
    limit = 1 << 20
    assert record(client, payload="x" * (limit - 2)).status == 201
    refused = record(client, payload="x" * (limit - 1))
    assert (refused.status, refused.headers["Content-Type"]) == (413, PROBLEM)
    assert f"{limit + 1} bytes" in refused.json["detail"]
    assert len(stored(ferryman_db)) == 1


def test_event_with_a_key_is_recorded_once_however_often_it_is_sent(client: Client, ferryman_db: Database) -> None:
    """N5: also by many clients at once. Another event with the key is refused, and changes nothing."""
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: record(client, idempotency_key="k1"), range(8)))
    assert sorted(each.status for each in answers) == [200] * 7 + [201]
    assert len({each.json["id"] for each in answers}) == 1
    for other in ({"type": "order.sent"}, {"payload": {"order": 8}}, {"content_type": "text/plain"}):
        refused = record(client, idempotency_key="k1", **other)
        assert (refused.status, refused.headers["Content-Type"]) == (409, PROBLEM)
    assert record(client, idempotency_key="k2").status == 201
    assert len(stored(ferryman_db)) == 2


def test_unknown_type_is_refused_with_the_known_ones(url: str, ferryman_db: Database) -> None:
    with serving(url, event_types=["order.paid", "order.sent"]) as client:
        assert record(client).status == create(client).status == 201
        refused = record(client, type="order.payed")
        assert (refused.status, list(refused.wrong)) == (422, ["type"])
        assert "order.paid, order.sent" in refused.wrong["type"]
        refused = create(client, event_types=["order.paid", "order.payed"])
        assert (refused.status, list(refused.wrong)) == (422, ["event_types"])
        assert "'order.payed'" in refused.wrong["event_types"]
    assert len(stored(ferryman_db)) == 1


# --- subscriptions


WRONG_ENDPOINTS = [
        ("http://hooks.example/in", "https://"), ("ftp://hooks.example", "http"), ("hooks.example/in", "begin"),
        ("https://user:geheim@hooks.example", "password"), ("https://", "host"), ("https://a b/", "space"),
        ("https://hooks.example/#part", "fragment"), ("HTTPS://hooks.example/", "lower case"),
        ("https://hooks.example:99999/", "port"), ("", "empty"), ("https://[::1", "valid"),
        ("https://127.0.0.1/", "loopback"), ("https://localhost:8443/", "loopback"), ("https://127.1/", "loopback"),
        ("https://0x7f000001/", "loopback"), ("https://[::ffff:10.0.0.1]/", "private"),
        ("https://192.168.1.4/", "private"),
        ("https://169.254.169.254/latest/meta-data", "metadata"), ("https://[fd00::1]/", "private"),
]  # fmt: skip


def test_endpoint_that_no_request_may_go_to_is_refused_and_not_shown(client: Client, ferryman_db: Database) -> None:
    """N15. Its URL may hold a secret."""
    for endpoint, words in WRONG_ENDPOINTS:
        refused = create(client, endpoint=endpoint)
        assert (refused.status, list(refused.wrong)) == (422, ["endpoint"]), endpoint
        assert words in refused.wrong["endpoint"]
        assert b"geheim" not in refused.body
    assert ferryman_db.execute("SELECT count(*) FROM webhooks.subscriptions").fetchone() == (0,)


def test_endpoint_in_an_open_range_is_taken_and_http_where_a_setting_says_so(client: Client, url: str) -> None:
    assert create(client, endpoint="https://10.1.2.3/in").status == 201
    assert create(client, endpoint="https://10.2.2.3/in").status == 422
    with serving(url, allow_http=True) as other:
        assert create(other, endpoint="http://10.1.2.3:8080/in").status == 201
        assert create(other, endpoint="http://127.0.0.1/in").status == 422


WRONG_SUBSCRIPTIONS: list[tuple[dict[str, Any], str]] = [
        ({"max_retry_limit": 0}, "max_retry_limit"), ({"max_retry_limit": 1_000_000}, "max_retry_limit"),
        ({"max_retry_limit": "3"}, "max_retry_limit"), ({"base_seconds": 0}, "base_seconds"),
        ({"cap_seconds": 700_000}, "cap_seconds"), ({"event_types": []}, "event_types"),
        ({"event_types": ["a"] * 101}, "event_types"), ({"event_types": [None]}, "event_types.0"),
        ({"event_types": "order.paid"}, "event_types"), ({"endpoint": None}, "endpoint"), ({"active": False}, "active"),
]  # fmt: skip


def test_wrong_field_of_a_subscription_is_named(client: Client) -> None:
    for wrong, field in WRONG_SUBSCRIPTIONS:
        refused = create(client, **wrong)
        assert (refused.status, list(refused.wrong)) == (422, [field]), wrong


def test_secret_is_shown_once_and_a_repeated_request_makes_no_second_subscription(
    client: Client, ferryman_db: Database
) -> None:
    made = create(client, max_retry_limit=3, idempotency_key="hook-1")
    number, secret = made.json["id"], made.json["secret"]
    assert (made.status, made.headers["Location"]) == (201, f"/subscriptions/{number}")
    assert ferryman_db.execute("SELECT secret FROM webhooks.subscription_secrets").fetchall() == [(secret,)]
    again = create(client, max_retry_limit=3, idempotency_key="hook-1")
    assert (again.status, again.json) == (200, made.json | {"secret": None})
    assert create(client, idempotency_key="hook-1").status == 409
    shown = client.get(f"/subscriptions/{number}", by="support")
    assert [each["expires_at"] for each in shown.json["secrets"]] == [None]
    for answer in (again, shown, client.get("/subscriptions", by="owner")):
        assert secret.encode() not in answer.body


def test_subscription_is_changed_field_by_field(client: Client) -> None:
    made = create(client, max_retry_limit=3, base_seconds=1.5).json
    path, expected = f"/subscriptions/{made['id']}", {name: made[name] for name in made if name != "secret"}
    for wanted in (
        {"paused": True}, {"paused": False, "active": False}, {"active": True}, {"max_retry_limit": None},
        {"endpoint": "https://other.example/", "event_types": ["a", "b"], "base_seconds": None, "cap_seconds": 60}, {},
    ):  # fmt: skip
        changed = client.ask("PATCH", path, wanted, by="owner")
        assert changed.json["updated_at"] > expected["updated_at"]
        assert (changed.json["disabled_at"] is None) == changed.json["active"]
        expected |= {**wanted, "updated_at": changed.json["updated_at"], "disabled_at": changed.json["disabled_at"]}
        assert (changed.status, changed.json) == (200, expected)
        shown = client.get(path, by="owner").json
        assert {name: shown[name] for name in expected} == expected


def test_wrong_change_is_refused_and_changes_nothing(client: Client) -> None:
    path = f"/subscriptions/{create(client).json['id']}"
    before = client.get(path, by="owner").json
    wrong: dict[str, Any]
    for wrong in (
        {"endpoint": "https://10.2.2.2/"}, {"endpoint": None}, {"active": None}, {"paused": "true"}, {"secret": "x"},
        {"event_types": []}, {"event_types": None}, {"max_retry_limit": 101}, {"cap_seconds": -1}, {"id": 2},
    ):  # fmt: skip
        refused = client.ask("PATCH", path, {"base_seconds": 7, **wrong}, by="owner")
        assert (refused.status, list(refused.wrong)) == (422, list(wrong))
    assert client.get(path, by="owner").json == before


def test_new_secret_signs_beside_the_old_one_for_a_day(client: Client, ferryman_db: Database) -> None:
    """Or for as long as the request says: not at all, if the old one was leaked."""
    made = create(client).json
    path = f"/subscriptions/{made['id']}/secrets"
    rotated = client.ask("POST", path, {}, by="owner")
    assert rotated.status == 201
    signing = (
        "SELECT secret FROM webhooks.subscription_secrets WHERE expires_at > clock_timestamp() {} ORDER BY created_at"
    )
    day = "+ interval '86390 s' AND expires_at < clock_timestamp() + interval '86400 s'"
    assert ferryman_db.execute(signing.format("")).fetchall() == [(made["secret"],), (rotated.json["secret"],)]
    assert ferryman_db.execute(signing.format(day)).fetchall() == [(made["secret"],)]
    assert [each["expires_at"] is None for each in rotated.json["secrets"]] == [True, False]
    again = client.ask("POST", path, {"overlap_seconds": 0}, by="owner").json
    assert ferryman_db.execute(signing.format("")).fetchall() == [(again["secret"],)]
    ferryman_db.execute(
        "UPDATE webhooks.subscription_secrets SET expires_at = now() - interval '8 d' WHERE expires_at < now()"
    )
    client.ask("POST", path, {}, by="owner")
    assert ferryman_db.execute("SELECT count(*) FROM webhooks.subscription_secrets").fetchone() == (2,)


def test_secrets_that_sign_at_once_are_few(client: Client) -> None:
    path = f"/subscriptions/{create(client).json['id']}/secrets"
    statuses = [client.ask("POST", path, {}, by="owner").status for _ in range(6)]
    assert statuses == [201] * 4 + [409] * 2
    assert client.ask("POST", path, {"overlap_seconds": 0}, by="owner").status == 201


def test_subscriptions_are_listed_newest_first_and_filtered(client: Client, ferryman_db: Database) -> None:
    made = [create(client, event_types=[f"type-{n % 2}", "all"], paused=n == 3).json["id"] for n in range(5)]
    ferryman_db.execute("UPDATE webhooks.subscriptions SET active = false WHERE id = %s", (made[0],))

    def listed(query: str) -> list[int]:
        return [each["id"] for each in client.get(f"/subscriptions?{query}", by="support").json["subscriptions"]]

    assert listed("") == made[::-1]
    assert listed("event_type=type-1") == [made[3], made[1]]
    assert listed("active=false") == [made[0]]
    assert listed("paused=true&active=true") == [made[3]]
    first = client.get("/subscriptions?limit=3", by="support").json
    assert listed(f"limit=3&after={first['next']}") == [made[1], made[0]]
    assert client.get(f"/subscriptions?limit=2&after={first['next']}", by="support").json["next"] is None


def test_wrong_cursor_or_filter_is_named(client: Client) -> None:
    times = base64.urlsafe_b64encode(b'["2026-01-01T00:00:00+00:00","6d0f6a34-29a8-4bb5-8d1b-0f0f4a6f5e11"]').decode()
    for path in ("subscriptions", "deliveries"):
        for cursor in (
            "x",
            "dHJ1ZQ",
            "MA",
            "LTE",
            "MS41",
            "OTIyMzM3MjAzNjg1NDc3NTgwOA",
            times,
        ):  # true, 0, -1, 1.5, 2**63
            refused = client.get(f"/{path}?after={cursor}", by="support")
            assert (refused.status, list(refused.wrong)) == (400, ["after"]), cursor
        for query in ("limit=0", "colour=red", "limit=1&limit=2"):
            assert client.get(f"/{path}?{query}", by="support").status == 422, query


# --- tests of an endpoint


def test_test_is_delivered_to_its_subscription_alone(client: Client, desk: DeliveryDesk) -> None:
    """It is an event like any other, with a delivery and a job. Another subscription does not get it by its type."""
    wanted, other = (create(client, event_types=["webhook.test"]).json["id"] for _ in range(2))
    asked = client.ask("POST", f"/subscriptions/{wanted}/tests", by="owner")
    assert asked.status == 202
    desk.route()
    desk.due()
    shown = client.get(f"/deliveries?event_id={asked.json['event_id']}", by="support").json["deliveries"]
    assert [(each["subscription_id"], each["event_type"], each["status"]) for each in shown] == [
        (wanted, "webhook.test", "InProgress")
    ]
    assert stored(desk.db) == [("webhook.test", b'{"test": true, "subscription_id": %d}' % wanted, "application/json")]
    assert other


def test_test_of_an_endpoint_that_gets_nothing_is_refused(client: Client, ferryman_db: Database) -> None:
    path = f"/subscriptions/{create(client).json['id']}"
    for change, words in (({"paused": True}, "paused"), ({"active": False}, "not active")):
        client.ask("PATCH", path, change, by="owner")
        refused = client.ask("POST", f"{path}/tests", by="owner")
        assert (refused.status, words in refused.json["detail"]) == (409, True)
    assert stored(ferryman_db) == []


# --- deliveries


def test_delivery_is_shown_with_its_jobs_and_their_attempts(client: Client, desk: DeliveryDesk) -> None:
    """A job whose worker was lost was sent twice; one that was given up without a send has none, and says why."""
    saga = desk.routed(max_retry_limit=3)
    desk.apply(desk.end(saga, "SERVER_FAILED"))
    desk.due()
    desk.db.execute(
        "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome, code) "
        "SELECT 'webhook-worker', id::text, now() - interval '1 min', 'lost', 'LEASE_EXPIRED' "
        "FROM webhooks.webhook_delivery_jobs WHERE status = 'Pending'"
    )
    desk.apply(desk.end(saga, "TIMED_OUT"))
    desk.db.execute("UPDATE webhooks.subscriptions SET active = false")
    desk.due()
    disabled = subscribe(desk.db, "https://b.example", "other")
    publish(desk.db, event_type="other")
    desk.route()
    desk.db.execute("UPDATE webhooks.subscriptions SET active = false")
    desk.due()
    shown = client.get(f"/deliveries/{saga}", by="support")
    assert (shown.status, shown.json["status"], shown.json["attempt_count"]) == (200, "DeadLettered", 2)
    assert shown.json["final_error_code"] == "SUBSCRIPTION_DISABLED"
    assert [
        (job["attempt"], job["status"], [(each["outcome"], each["code"]) for each in job["attempts"]])
        for job in shown.json["jobs"]
    ] == [
        (1, "Failed", [("failed", "SERVER_FAILED")]),
        (2, "Failed", [("lost", "LEASE_EXPIRED"), ("failed", "TIMED_OUT")]),
    ]
    [unsent] = client.get(f"/deliveries?subscription_id={disabled}", by="support").json["deliveries"]
    [job] = client.get(f"/deliveries/{unsent['id']}", by="support").json["jobs"]
    assert (job["status"], job["error"], job["attempts"]) == ("Failed", "SUBSCRIPTION_DISABLED", [])


def test_deliveries_are_listed_newest_first_and_filtered(client: Client, desk: DeliveryDesk) -> None:
    one, two = (subscribe(desk.db, f"https://{name}.example", "order.paid") for name in ("a", "b"))
    events = [publish(desk.db) for _ in range(3)]
    while desk.route():
        pass
    desk.due()
    made = {row[1:]: row[0] for row in desk.db.execute("SELECT id, event_id, subscription_id FROM "
                                                       "webhooks.webhook_delivery_sagas").fetchall()}  # fmt: skip
    desk.apply(desk.end(made[events[0], one]))

    def listed(query: str) -> list[int]:
        return [each["id"] for each in client.get(f"/deliveries?{query}", by="support").json["deliveries"]]

    assert listed("") == sorted(made.values(), reverse=True)
    assert listed(f"subscription_id={two}") == [made[event, two] for event in reversed(events)]
    assert sorted(listed(f"event_id={events[1]}")) == sorted([made[events[1], one], made[events[1], two]])
    assert listed("status=Completed") == [made[events[0], one]]
    assert listed(f"status=Completed&subscription_id={two}") == []
    seen, after = list[int](), ""
    while after is not None:
        page = client.get(f"/deliveries?limit=4&after={after}" if after else "/deliveries?limit=4", by="support").json
        seen += [each["id"] for each in page["deliveries"]]
        after = page["next"]
    assert seen == sorted(made.values(), reverse=True)
    for query in ("status=Done", "subscription_id=0", "event_id=x", "event_id=1_0", f"event_id={2**63}"):
        assert client.get(f"/deliveries?{query}", by="support").status == 422, query


# --- dead letters


def dead(desk: DeliveryDesk, code: str, subscription: int | None = None) -> int:
    """Return a delivery that was given up after its first attempt."""
    saga = desk.routed(subscription or subscribe(desk.db, "https://a.example", f"type-{uuid4()}", max_retry_limit=1))
    desk.apply(desk.end(saga, code))
    return saga


def act(client: Client, verb: str, **wanted: Any) -> Any:
    answer = client.ask("POST", f"/dead-letters/{verb}", {"reason": "it is up again", **wanted}, by="operator")
    assert answer.status == 200, answer.body
    return answer.json


def test_dead_letters_are_listed_and_shown_with_attempts_and_generations(client: Client, desk: DeliveryDesk) -> None:
    made = [dead(desk, code) for code in ("GONE", "TIMED_OUT", "GONE")]

    def listed(query: str) -> list[int]:
        return [each["id"] for each in client.get(f"/dead-letters?{query}", by="operator").json["letters"]]

    assert listed("") == made[::-1]
    assert listed("code=GONE") == [made[2], made[0]]
    first = client.get("/dead-letters?limit=2", by="operator").json
    assert listed(f"limit=2&after={first['next']}") == [made[0]]
    subscription = first["letters"][0]["subscription_id"]
    assert listed(f"subscription_id={subscription}&until=2090-01-01T00:00:00Z") == [made[2]]
    assert listed("since=2090-01-01T00:00:00Z") == listed("state=requeued") == []
    [new] = act(client, "requeue", ids=[made[0]], dry_run=False)["requeued_as"]
    shown = client.get(f"/dead-letters/{made[0]}", by="operator").json
    assert (shown["state"], shown["requeued_as"], shown["error_code"]) == ("requeued", new, "GONE")
    assert [(job["attempt"], job["attempts"][0]["code"]) for job in shown["jobs"]] == [(1, "GONE")]
    assert [(each["id"], each["status"]) for each in shown["generations"]] == [
        (made[0], "DeadLettered"), (new, "Pending"),
    ]  # fmt: skip
    assert listed("state=all") == made[::-1]


def test_dead_letters_are_requeued_once_after_a_dry_run_with_an_audit(client: Client, desk: DeliveryDesk) -> None:
    gone, late, kept = dead(desk, "GONE"), dead(desk, "GONE"), dead(desk, "TIMED_OUT")
    desk.db.execute("UPDATE webhooks.subscriptions SET active = false WHERE id = (SELECT subscription_id FROM "
                    "webhooks.webhook_delivery_sagas WHERE id = %s)", (late,))  # fmt: skip
    plan = act(client, "requeue", code="GONE")
    assert plan == {"dry_run": True, "letters": 2, "by_code": {"GONE": 2}, "disabled": 1}
    count = "SELECT count(*) FROM webhooks.webhook_delivery_sagas WHERE generation = 1"
    assert desk.db.execute(count).fetchone() == (0,)
    with ThreadPoolExecutor(4) as operators:
        done = list(operators.map(lambda _: act(client, "requeue", code="GONE", dry_run=False)["done"], range(4)))
    assert sorted(done) == [[], [], [], [gone]]
    assert desk.db.execute(count).fetchone() == (1,)
    assert act(client, "requeue", ids=[gone, late, kept, 999]) == {
        "dry_run": True, "letters": 2, "by_code": {"GONE": 1, "TIMED_OUT": 1}, "disabled": 1,
    }  # fmt: skip
    [(who, reason, entries)] = desk.db.execute(
        "SELECT who, reason, entries FROM ferryman.outbox_audit WHERE act = 'requeue'"
    ).fetchall()
    assert (who.partition(" (")[0], reason, entries) == ("operator", "it is up again", 1)


def test_dead_letters_are_put_aside_and_requeued_by_their_id_alone(client: Client, desk: DeliveryDesk) -> None:
    one, two = dead(desk, "GONE"), dead(desk, "GONE")
    assert act(client, "discard", code="GONE") == {"dry_run": True, "letters": 2, "by_code": {"GONE": 2}, "disabled": 0}
    done = act(client, "discard", ids=[one, two], dry_run=False)
    assert done == {"dry_run": False, "done": [one, two], "requeued_as": [], "next": None}
    assert act(client, "discard", ids=[one, two], dry_run=False)["done"] == []
    assert act(client, "discard", ids=[one])["letters"] == 0
    assert act(client, "requeue", code="GONE", dry_run=False)["done"] == []
    assert act(client, "requeue", ids=[two], dry_run=False)["done"] == [two]
    assert client.get("/dead-letters?state=discarded", by="operator").json["letters"][0]["reason"] == "it is up again"


def test_act_on_many_letters_goes_on_where_it_left_off(
    client: Client, desk: DeliveryDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters of disabled subscriptions are left, and do not hold up those behind them."""
    monkeypatch.setattr(dead_letters_api, "PORTION", 2)
    made = [dead(desk, "GONE") for _ in range(5)]
    desk.db.execute("UPDATE webhooks.subscriptions SET active = false WHERE id IN (SELECT subscription_id FROM "
                    "webhooks.webhook_delivery_sagas WHERE id = ANY (%s))", (made[:2],))  # fmt: skip
    done, after = list[int](), None
    for _ in range(3):
        answer = act(client, "requeue", code="GONE", dry_run=False, after=after)
        done, after = done + answer["done"], answer["next"]
    assert (done, after) == (made[2:], None)


def test_act_that_names_no_letters_or_no_reason_is_refused(client: Client, desk: DeliveryDesk) -> None:
    saga = dead(desk, "GONE")
    for body, field in (
        ({"reason": "r", "dry_run": False}, "body"), ({"code": "GONE", "dry_run": False}, "reason"),
        ({"ids": [], "reason": "r"}, "ids"), ({"ids": ["1"], "reason": "r"}, "ids.0"),
        ({"ids": [0], "reason": "r"}, "ids.0"), ({"since": 5, "reason": "r"}, "since"),
        ({"code": "GONE", "reason": ""}, "reason"),
    ):  # fmt: skip
        for verb in ("requeue", "discard"):
            refused = client.ask("POST", f"/dead-letters/{verb}", body, by="operator")
            assert (refused.status, list(refused.wrong)) == (422, [field]), body
    assert client.get(f"/dead-letters/{saga}", by="operator").json["state"] == "waiting"


# --- who may


def test_each_route_wants_its_scope_and_answers_404_for_what_is_not_there(client: Client) -> None:
    routes: list[tuple[str, str, Any, set[str], int]] = [
        ("POST", "/events", EVENT, {"shop"}, 201),
        ("POST", "/subscriptions", HOOK, {"owner"}, 201),
        ("GET", "/subscriptions", None, {"owner", "support"}, 200),
        ("GET", "/subscriptions/7", None, {"owner", "support"}, 404),
        ("PATCH", "/subscriptions/7", {"paused": True}, {"owner"}, 404),
        ("POST", "/subscriptions/7/secrets", {}, {"owner"}, 404),
        ("POST", "/subscriptions/7/tests", None, {"owner"}, 404),
        ("GET", "/deliveries", None, {"support"}, 200),
        ("GET", "/deliveries/7", None, {"support"}, 404),
        ("GET", "/dead-letters", None, {"operator"}, 200),
        ("GET", "/dead-letters/7", None, {"operator"}, 404),
        ("POST", "/dead-letters/requeue", {"code": "GONE", "reason": "r"}, {"operator"}, 200),
        ("POST", "/dead-letters/discard", {"code": "GONE", "reason": "r"}, {"operator"}, 200),
    ]
    for method, path, body, allowed, status in routes:
        statuses = {by: client.ask(method, path, body, by=by).status for by in SCOPES}
        assert statuses == {by: status if by in allowed else 403 for by in SCOPES}, (method, path)
    for path in ("/subscriptions/0", "/subscriptions/x", f"/deliveries/{2**63}"):
        assert client.get(path, by="support").status == 422, path
