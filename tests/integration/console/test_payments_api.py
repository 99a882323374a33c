"""The API of payments over real HTTP on a real database: each status code, and the recorded state after it."""

import io
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import structlog
from prometheus_client import generate_latest

from ferryman import Misconfigured
from ferryman.runtime import logs
from ferryman.runtime.metrics import REGISTRY
from ferryman.runtime.settings import Log
from ferryman.services.payments import store
from ferryman.services.payments.store import Request
from support.asking import Client, Running, forget_systems, payment, running, settings, token, until
from support.paying import Desk, failed, succeeded

Database = psycopg.Connection[tuple[Any, ...]]

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def api(desk: Desk, ferryman_database_url: str) -> Iterator[Running]:  # noqa: ARG001 - it sets the schemas up
    with running(settings(ferryman_database_url)) as made:
        until(lambda: made.life.why_not_ready is None)
        yield made


@pytest.fixture
def client(api: Running) -> Client:
    return api.client


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Capture the log as JSON, and restore the test run's logs afterwards."""
    root, said = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    logs.configure(Log(format="json"), said)
    yield said
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def request_of(body: dict[str, Any]) -> Request:
    return Request(UUID(body["uuid"]), UUID(body["wallet_id"]), body["amount"], body["currency"])


def count(desk: Desk, table: str) -> int:
    row = desk.db.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


# --- asking for payments


def test_a_payment_is_recorded_with_its_command_and_shown_at_its_location(desk: Desk, client: Client) -> None:
    """N1."""
    body = payment(reference="Invoice 17", amount=10**15)
    first = client.post(body)
    assert first.status == 201
    assert first.headers["Location"] == f"/payments/{body['uuid']}"
    assert first.json == body | {
        "fulfil": False, "status": "PENDING", "reason": None,
        "created_at": first.json["created_at"], "changed_at": first.json["changed_at"],
    }  # fmt: skip
    assert first.json["created_at"].endswith("Z")
    assert client.get(first.headers["Location"]).json == first.json
    assert desk.kinds(request_of(body)) == ["wallet.deduct", "payment.requested"]


def test_a_repeated_body_is_answered_200_with_the_present_state(desk: Desk, client: Client) -> None:
    body = payment()
    first, again = client.post(body), client.post(body)
    assert (first.status, again.status, again.json) == (201, 200, first.json)
    assert "Location" not in again.headers
    desk.apply(succeeded(request_of(body)))
    assert client.post(body | {"fulfil": False, "reference": None}).json["status"] == "SUCCEEDED"
    assert count(desk, "payments.requests") == 1
    assert desk.kinds(request_of(body)).count("wallet.deduct") == 1


def test_another_body_with_the_same_uuid_is_a_conflict_and_changes_nothing(desk: Desk, client: Client) -> None:
    body = payment()
    client.post(body)
    for another in ({"amount": 501}, {"currency": "USD"}, {"fulfil": True}, {"reference": "another"},
                    {"wallet_id": str(uuid4())}):  # fmt: skip
        refused = client.post(body | another)
        assert (refused.status, refused.headers["Content-Type"]) == (409, "application/problem+json"), another
        assert body["uuid"] in refused.json["detail"]
    assert client.get(f"/payments/{body['uuid']}").json["amount"] == 500
    assert count(desk, "ferryman.outbox") == 2


def test_a_payment_that_was_archived_is_gone_and_the_answer_says_how_it_ended(desk: Desk, client: Client) -> None:
    body = payment(reference="Invoice 17")
    client.post(body)
    desk.apply(succeeded(request_of(body)))
    desk.db.execute("SELECT payments.archive(now() + '1 s', 'ada', 'kept elsewhere')")
    report = client.tell(body["uuid"], {"status": "FAILED"})
    for gone in (
        client.post(body),
        client.post(body | {"amount": 501}),
        client.get(f"/payments/{body['uuid']}"),
        report,
    ):
        assert (gone.status, gone.headers["Content-Type"]) == (410, "application/problem+json")
        assert f"the payment {body['uuid']} is over: it SUCCEEDED, and was archived" in gone.json["detail"]


def test_clients_that_send_the_same_payment_at_once_record_it_once(desk: Desk, client: Client) -> None:
    """N5: one client is answered 201, and the command is sent once."""
    bodies = [payment() for _ in range(5)]
    with ThreadPoolExecutor(20) as clients:
        answers = list(clients.map(client.post, bodies * 8))
    assert sorted(each.status for each in answers) == [200] * 35 + [201] * 5
    assert count(desk, "payments.requests") == 5
    assert all(desk.kinds(request_of(body)) == ["wallet.deduct", "payment.requested"] for body in bodies)


def test_clients_that_send_different_payments_of_one_uuid_at_once_get_one_through(desk: Desk, client: Client) -> None:
    body = payment()
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(client.post, [body | {"amount": amount} for amount in range(1, 9)]))
    assert sorted(each.status for each in answers) == [201] + [409] * 7
    won = next(each for each in answers if each.status == 201)
    assert client.get(f"/payments/{body['uuid']}").json == won.json
    assert count(desk, "ferryman.outbox") == 2


WRONG_FIELDS: list[tuple[str, Any]] = [
    ("uuid", "12"), ("uuid", 12), ("uuid", None), ("wallet_id", []), ("wallet_id", ""),
    ("amount", 1.0), ("amount", 0.5), ("amount", "1"), ("amount", True), ("amount", 0), ("amount", -1),
    ("amount", 10**15 + 1), ("amount", 10**30), ("amount", None), ("amount", float("nan")),
    ("currency", "eur"), ("currency", "EURO"), ("currency", "EUR\n"), ("currency", "ÄÖÜ"), ("currency", 978),
    ("fulfil", "true"), ("fulfil", 1), ("fulfil", None),
    ("reference", "x" * 501), ("reference", "a\0b"), ("reference", "\ud800"), ("reference", 17),
    ("refrence", "misspelled"),
]  # fmt: skip


def test_a_field_of_a_wrong_type_or_value_is_named(client: Client) -> None:
    for field, value in WRONG_FIELDS:
        refused = client.post(payment() | {field: value})
        assert (refused.status, list(refused.wrong)) == (422, [field]), (field, value)


def test_every_field_that_is_wrong_is_named_at_once_and_nothing_is_recorded(desk: Desk, client: Client) -> None:
    refused = client.post({"amount": "1", "more": 1})
    assert set(refused.wrong) == {"uuid", "wallet_id", "amount", "currency", "more"}
    assert refused.json["title"] == "Unprocessable Entity"
    assert count(desk, "payments.requests") == 0


def test_a_body_that_is_not_json_is_answered_400(client: Client) -> None:
    twice = json.dumps(payment()).encode().replace(b"{", b'{"amount": 1, ')
    utf_16 = json.dumps(payment()).encode("utf-16")
    for body in (twice, utf_16, b"{", b"\xff", b'{"uuid": }', b'{"amount": ' + b"9" * 6000 + b"}", b"[" * 60000):
        refused = client.post(body)
        assert (refused.status, refused.headers["Content-Type"]) == (400, "application/problem+json"), body[:20]


def test_a_body_that_is_no_object_is_answered_422(client: Client) -> None:
    assert {client.post(body).status for body in (b"[]", b"null", b'"text"', b"")} == {422}


def test_a_body_without_a_json_content_type_is_answered_415(client: Client) -> None:
    assert client.post(payment(), headers={"Content-Type": "application/x-www-form-urlencoded"}).status == 415
    assert client.post(payment(), headers={"Content-Type": "application/json; charset=utf-8"}).status == 201


def test_a_body_that_is_too_large_is_refused_with_or_without_its_length(client: Client) -> None:
    """N12."""
    whole = json.dumps(payment()).encode()
    assert client.post(whole + b" " * (65536 - len(whole))).status == 201
    assert client.post(payment(reference="x" * 65536)).status == 413
    chunked = client.post(iter([b" " * 30000] * 3))
    assert (chunked.status, chunked.headers["Content-Type"]) == (413, "application/problem+json")
    assert client.post(iter([json.dumps(payment()).encode()])).status == 201


def test_the_clients_trace_context_is_passed_on_unless_malformed(desk: Desk, client: Client) -> None:
    malformed = (TRACE.upper(), TRACE[:-1], "ff" + TRACE[2:], f"00-{'0' * 32}-b7ad6b7169203331-01", TRACE + "\t;")
    for given in (TRACE, *malformed):
        body, headers = payment(), {"traceparent": given}
        assert client.post(body, headers=headers).status == 201
        assert client.tell(body["uuid"], {"status": "SUCCEEDED"}, headers=headers).status == 200
        rows = desk.db.execute(
            "SELECT headers->>'traceparent' FROM ferryman.outbox WHERE key IN (%s, %s)",
            (body["uuid"], body["wallet_id"]),
        ).fetchall()
        assert rows == [(TRACE if given == TRACE else None,)] * 3, given


# --- looking at them


def test_payments_are_listed_newest_first_page_by_page(client: Client) -> None:
    bodies = [payment() for _ in range(5)]
    for body in bodies:
        client.post(body)
    seen, after, page = [], "", {}
    for _ in range(3):
        page = client.get(f"/payments?limit=2{after}").json
        seen += [each["uuid"] for each in page["payments"]]
        after = f"&after={page['next']}"
    assert page["next"] is None
    assert seen == [body["uuid"] for body in reversed(bodies)]


def test_the_list_can_be_narrowed(desk: Desk, client: Client) -> None:
    one, two, three = (payment() for _ in range(3))
    for body in (one, two, three):
        client.post(body)
    desk.apply(succeeded(request_of(one)), failed(request_of(two), "NO_WALLET"))

    def listed(query: str) -> list[str]:
        return [each["uuid"] for each in client.get(f"/payments?{query}").json["payments"]]

    at = client.get(f"/payments/{two['uuid']}").json["created_at"]
    assert listed("status=SUCCEEDED") == [one["uuid"]]
    assert listed("status=FAILED") == [two["uuid"]]
    assert listed("status=PENDING") == [three["uuid"]]
    assert listed(f"wallet_id={two['wallet_id']}") == [two["uuid"]]
    assert listed(f"since={at}") == [three["uuid"], two["uuid"]]
    assert listed(f"until={at}") == [one["uuid"]]


def test_a_filter_that_is_wrong_is_named_and_not_passed_over(client: Client) -> None:
    for query in ("status=DONE", "wallet_id=1", "since=yesterday", "until=2026-01-01T00:00:00", "limit=0", "limit=501",
                  "walet=1", "since=0", "until=0.5", "since=2026-01-01", "limit=1_0", "limit=+1", "limit=1.0",
                  "limit=1&limit=2"):  # fmt: skip
        refused = client.get(f"/payments?{query}")
        assert (refused.status, list(refused.wrong)) == (422, [query.partition("=")[0]]), query


def test_a_wrong_cursor_is_answered_400(client: Client) -> None:
    for cursor in ("x", "%00", "W10", "WzEsMl0", "WyIyMDI2LTAxLTAxIiwieCJd", "bnVsbA", "%C3%A4"):
        refused = client.get(f"/payments?after={cursor}")
        assert (refused.status, list(refused.wrong)) == (400, ["after"]), cursor


def test_unknown_paths_are_answered_404_and_wrong_methods_405(client: Client) -> None:
    for path in (f"/payments/{uuid4()}", "/nothing", "/payments/"):
        assert (client.get(path).status, client.get(path).json["status"]) == (404, 404)
    assert client.ask("DELETE", f"/payments/{uuid4()}").status == 405
    assert client.ask("DELETE", "/payments").headers["Allow"] == "GET, POST"
    assert client.get("/payments/12").wrong.keys() == {"uuid"}


# --- who may


def test_each_route_wants_a_token_and_its_scope(client: Client) -> None:
    uuid = uuid4()
    routes: list[tuple[str, str, Any, set[str]]] = [
        ("POST", "/payments", payment(), {"shop"}),
        ("GET", "/payments", None, {"shop", "auditor"}),
        ("GET", f"/payments/{uuid}", None, {"shop", "auditor"}),
        ("PUT", f"/internal/requests/{uuid}", {"status": "FAILED"}, {"wallet"}),
    ]
    for method, path, body, allowed in routes:
        for by in ("shop", "auditor", "wallet"):
            answer = client.ask(method, path, body, by=by)
            assert (answer.status == 403) == (by not in allowed), (method, path, by)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token('shop')}"},
                        {"Authorization": "Bearer "}, {"Authorization": token("shop")}):  # fmt: skip
            answer = client.ask(method, path, b"{", by=None, headers=headers)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.usefixtures("desk")
def test_an_open_api_asks_for_no_token(ferryman_database_url: str) -> None:
    with running(settings(ferryman_database_url, api={"tokens": {}, "open": True})) as made:
        until(lambda: made.life.why_not_ready is None)
        body = payment()
        assert made.client.post(body, by=None).status == 201
        assert made.client.tell(body["uuid"], {"status": "FAILED"}, by="nobody").status == 200


# --- the wallet's word


def test_the_wallets_report_ends_a_payment_with_the_same_events_as_results(desk: Desk, client: Client) -> None:
    good, poor, vague = payment(), payment(), payment()
    for body in (good, poor, vague):
        client.post(body)
    whole = {name: good[name] for name in ("wallet_id", "amount", "currency")}
    assert client.tell(good["uuid"], {"status": "SUCCEEDED"} | whole).json["status"] == "SUCCEEDED"
    told = client.tell(poor["uuid"], {"status": "FAILED", "reason": "INSUFFICIENT_FUNDS"})
    assert (told.status, told.json["reason"]) == (200, "INSUFFICIENT_FUNDS")
    assert client.tell(vague["uuid"], {"status": "FAILED"}).json["reason"] == "UNKNOWN"
    assert desk.kinds(request_of(good))[2:] == ["payment.succeeded"]
    assert desk.left(request_of(poor))[-1][1]["reason"] == "INSUFFICIENT_FUNDS"
    assert desk.left(request_of(vague))[-1][1]["reason"] == "UNKNOWN"


def test_a_repeated_report_is_answered_alike_and_another_is_a_conflict(desk: Desk, client: Client) -> None:
    """N6, N7: a payment that is over never changes."""
    for word, other in (("SUCCEEDED", "FAILED"), ("FAILED", "SUCCEEDED")):
        body = payment()
        client.post(body)
        first = client.tell(body["uuid"], {"status": word})
        assert client.tell(body["uuid"], {"status": word}).json == first.json
        refused = client.tell(body["uuid"], {"status": other})
        assert (refused.status, word in refused.json["detail"]) == (409, True)
        assert client.get(f"/payments/{body['uuid']}").json == first.json
        assert len(desk.kinds(request_of(body))) == 3


def test_contradicting_reports_at_once_leave_one_result(desk: Desk, client: Client) -> None:
    """N6."""
    body = payment()
    client.post(body)
    words = [{"status": word} for word in ("SUCCEEDED", "FAILED") * 6]
    with ThreadPoolExecutor(12) as tellers:
        answers = list(tellers.map(lambda word: client.tell(body["uuid"], word), words))
    assert sorted(each.status for each in answers) == [200] * 6 + [409] * 6
    assert len({each.body for each in answers if each.status == 200}) == 1
    assert len(desk.kinds(request_of(body))) == 3


def test_report_and_result_of_a_deduction_end_it_once_in_any_order(desk: Desk, client: Client) -> None:
    told_first, result_first = payment(), payment()
    for body in (told_first, result_first):
        client.post(body)
    client.tell(told_first["uuid"], {"status": "SUCCEEDED"})
    desk.apply(succeeded(request_of(told_first)), succeeded(request_of(result_first)))
    assert client.tell(result_first["uuid"], {"status": "SUCCEEDED"}).status == 200
    for body in (told_first, result_first):
        assert desk.kinds(request_of(body)).count("payment.succeeded") == 1


def test_an_amount_taken_although_failed_was_reported_is_given_back(desk: Desk, client: Client) -> None:
    """N5: a report may be wrong, and nobody loses money by it."""
    body = payment()
    client.post(body)
    client.tell(body["uuid"], {"status": "FAILED"})
    desk.apply(succeeded(request_of(body)))
    assert desk.kinds(request_of(body))[-1] == "wallet.cancel"


def test_a_report_on_another_deduction_is_not_believed(desk: Desk, client: Client) -> None:
    body = payment()
    client.post(body)
    for another in ({"wallet_id": str(uuid4())}, {"amount": 499}, {"currency": "USD"}):
        assert client.tell(body["uuid"], {"status": "SUCCEEDED"} | another).status == 409, another
    assert desk.stands(request_of(body))[0] == "DEDUCTING"


def test_a_payment_with_several_steps_is_not_ended_by_the_wallets_report(desk: Desk, client: Client) -> None:
    several, late = payment(fulfil=True), payment()
    for body in (several, late):
        client.post(body)
    desk.late(request_of(late))
    for body, why, state in ((several, "several steps", "DEDUCTING"), (late, "CANCELLING", "CANCELLING")):
        for status in ("SUCCEEDED", "FAILED"):
            refused = client.tell(body["uuid"], {"status": status})
            assert (refused.status, why in refused.json["detail"]) == (409, True)
        assert desk.stands(request_of(body))[0] == state


def test_a_word_on_no_payment_is_answered_404(client: Client) -> None:
    assert client.tell(uuid4(), {"status": "SUCCEEDED"}).status == 404


def test_a_malformed_report_names_the_wrong_field(client: Client) -> None:
    bodies: list[tuple[dict[str, Any], str]] = [
        ({}, "status"), ({"status": "PENDING"}, "status"), ({"status": "FAILED", "reason": "TIMED_OUT"}, "reason"),
        ({"status": "FAILED", "reason": "a mood"}, "reason"), ({"status": "FAILED", "amount": 1.0}, "amount"),
        ({"status": "FAILED", "more": 1}, "more"),
    ]  # fmt: skip
    for body, field in bodies:
        refused = client.tell(uuid4(), body)
        assert (refused.status, list(refused.wrong)) == (422, [field]), body


# --- how it stands


def test_the_api_answers_503_while_the_database_is_away_and_recovers(
    api: Running, ferryman_postgres: str, ferryman_database_url: str
) -> None:
    """N11."""
    name = ferryman_database_url.rpartition("/")[2].partition("?")[0]
    body = payment()
    with psycopg.connect(ferryman_postgres, autocommit=True) as server:
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        until(lambda: api.life.why_not_ready)
        refused = api.client.post(body)
        assert (refused.status, refused.headers["Content-Type"]) == (503, "application/problem+json")
        assert int(refused.headers["Retry-After"]) > 0
        assert name not in refused.json["detail"]
        assert "PostgreSQL" in (api.life.why_not_ready or "")
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    until(lambda: api.life.why_not_ready is None)
    assert api.client.post(body).status == 201


def test_a_database_that_is_away_at_the_start_is_waited_for() -> None:
    """N11: the process answers, and says that it waits for the database."""
    with running(settings("postgresql://somebody@127.0.0.1:1/nothing")) as made:
        refused = made.client.post(payment())
        assert (refused.status, "Retry-After" in refused.headers) == (503, True)
        assert "does not answer" in (made.life.why_not_ready or "")


def test_the_api_needs_only_its_own_roles(desk: Desk, ferryman_database_url: str) -> None:
    """Without the role for reports it records and shows payments, but ends none."""
    role = f"api_{uuid4().hex}"
    desk.db.execute(f"CREATE ROLE {role} ROLE CURRENT_USER IN ROLE ferryman_payments_api")
    try:
        with running(settings(f"{ferryman_database_url}?options=-c%20role%3D{role}")) as made:
            until(lambda: made.life.why_not_ready is None)
            body = payment(reference="Invoice 17")
            assert [made.client.post(body).status for _ in range(2)] == [201, 200]
            assert len(made.client.get("/payments").json["payments"]) == 1
            assert made.client.tell(body["uuid"], {"status": "FAILED"}).status == 500
            assert desk.stands(request_of(body))[0] == "DEDUCTING"
            desk.db.execute(f"GRANT ferryman_payments_reports TO {role}")
            assert made.client.tell(body["uuid"], {"status": "FAILED"}).json["status"] == "FAILED"
    finally:
        desk.db.execute(f"DROP ROLE {role}")


def test_a_database_without_its_tables_is_refused(ferryman_db: Database, ferryman_database_url: str) -> None:
    forget_systems(ferryman_db)
    with (
        pytest.raises(Misconfigured, match="migrate --for memos,payments,reviews,webhooks"),
        running(settings(ferryman_database_url)),
    ):
        pass


def test_a_port_that_is_taken_is_named(api: Running, ferryman_database_url: str) -> None:
    taken = settings(ferryman_database_url, api={"port": int((api.service.url or "").rpartition(":")[2])})
    with pytest.raises(Misconfigured, match=r"api\.port"), running(taken):
        pass


def test_a_fault_is_answered_500_and_nothing_quotes_the_request(
    client: Client, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N14."""

    def broken(*_: Any) -> Any:
        raise ValueError("DETAIL: Failing row contains (geheim)")

    monkeypatch.setattr(store, "record_one", broken)
    refused = client.post(payment(reference="geheim"))
    assert (refused.status, refused.headers["Content-Type"]) == (500, "application/problem+json")
    assert "geheim" not in refused.body.decode() + logged.getvalue()
    event = json.loads(logged.getvalue().splitlines()[-1])
    assert (event["event"], event["error"], event["route"]) == ("failed", "ValueError", "POST /payments")
    assert any("broken" in place for place in event["where"])


def test_requests_are_counted_by_route_and_status_and_the_labels_do_not_grow(client: Client) -> None:
    client.get(f"/payments/{uuid4()}")
    client.ask("BREW", "/payments")
    client.get(f"/{uuid4()}")
    said = generate_latest(REGISTRY).decode()
    assert 'ferryman_api_requests_total{route="GET /payments/{uuid}",status="404"}' in said
    assert 'ferryman_api_requests_total{route="other",status="405"}' in said
    assert 'ferryman_api_request_seconds_count{route="other"}' in said
    assert "BREW" not in said


def test_the_description_names_every_route_and_what_it_may_answer(client: Client) -> None:
    paths = client.get("/openapi.json", by=None).json["paths"]
    said = {(path, method): set(route["responses"]) for path, each in paths.items() for method, route in each.items()}
    anywhere = {"400", "401", "403", "408", "413", "422", "500", "503"}
    assert said == {
        ("/payments", "post"): {"200", "201", "400", "409", "410", "415"} | anywhere,
        ("/payments", "get"): {"200", "400"} | anywhere,
        ("/payments/{uuid}", "get"): {"200", "404", "410"} | anywhere,
        ("/internal/requests/{uuid}", "put"): {"200", "400", "404", "409", "410", "415"} | anywhere,
        ("/memos", "post"): {"200", "201", "409", "415"} | anywhere,
        ("/memos/{memo_id}", "get"): {"200", "404"} | anywhere,
        ("/events", "post"): {"200", "201", "409", "415"} | anywhere,
        ("/subscriptions", "post"): {"200", "201", "409", "415"} | anywhere,
        ("/subscriptions", "get"): {"200", "400"} | anywhere,
        ("/subscriptions/{subscription_id}", "get"): {"200", "404"} | anywhere,
        ("/subscriptions/{subscription_id}", "patch"): {"200", "404", "415"} | anywhere,
        ("/subscriptions/{subscription_id}/secrets", "post"): {"201", "404", "409", "415"} | anywhere,
        ("/subscriptions/{subscription_id}/tests", "post"): {"202", "404", "409", "415"} | anywhere,
        ("/deliveries", "get"): {"200", "400"} | anywhere,
        ("/deliveries/{delivery_id}", "get"): {"200", "404"} | anywhere,
        ("/dead-letters", "get"): {"200", "400"} | anywhere,
        ("/dead-letters/{letter_id}", "get"): {"200", "404"} | anywhere,
        ("/dead-letters/requeue", "post"): {"200", "400", "415"} | anywhere,
        ("/dead-letters/discard", "post"): {"200", "400", "415"} | anywhere,
        ("/review-jobs", "post"): {"200", "201", "409", "415"} | anywhere,
        ("/review-jobs", "get"): {"200"} | anywhere,
        ("/review-jobs/{job}", "get"): {"200", "404"} | anywhere,
        ("/review-jobs/{job}/recipients", "get"): {"200", "404"} | anywhere,
        ("/review-jobs/{job}/recipients/{recipient}", "patch"): {"200", "404", "409", "415"} | anywhere,
        ("/review-jobs/{job}/give-up", "post"): {"200", "404", "409", "415"} | anywhere,
    }
    assert client.get("/docs", by=None).status == 200
