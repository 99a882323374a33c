"""`ferryman run api` as a process: killed between requests, stopped with one in flight, started without a token."""

import http.client
import json
import os
import resource
import signal
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import conninfo

from ferryman.testing.proxy import FaultProxy, Faults
from support.asking import TOKENS, Answer, Client, payment, sha256, token
from support.launch import KillAt, Launched, Launcher

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def environment(ferryman_database_url: str) -> dict[str, str]:
    made = {"FERRYMAN_DATABASE_URL": ferryman_database_url, "FERRYMAN_API__PORT": "0", "FERRYMAN_LOG__LEVEL": "debug"}
    for name, scopes in TOKENS.items():
        made[f"FERRYMAN_API__TOKENS__{name.upper()}__SHA256"] = sha256(name)
        made[f"FERRYMAN_API__TOKENS__{name.upper()}__SCOPES"] = json.dumps(scopes)
    return made


def events(launched: Launched) -> list[dict[str, Any]]:
    return [json.loads(line) for line in launched.stderr.splitlines() if line.startswith("{")]


def ready(launched: Launched) -> Client:
    """Wait until the API and its database answer, and return a client."""

    def url() -> str:
        return next((str(each["url"]) for each in events(launched) if each["event"] == "listening"), "")

    client = Client(launched.until(url, "its port"))
    launched.until(lambda: client.get("/payments").status == 200, "readiness")
    return client


def stands(db: Database, uuid: str) -> tuple[int, int]:
    """Return the number of rows and of commands of a payment."""
    row = db.execute(
        "SELECT (SELECT count(*) FROM payments.requests WHERE uuid = r.uuid), count(*) FROM ferryman.outbox o "
        "JOIN payments.requests r ON o.key = r.wallet_id::text WHERE r.uuid = %s AND o.type = 'wallet.deduct' "
        "GROUP BY r.uuid",
        (UUID(uuid),),
    ).fetchone()
    return row or (0, 0)


@pytest.mark.parametrize(
    ("kill_at", "status"),
    [
        (KillAt("ferryman.services.payments.requests:record", "after", 2), 201),  # its transaction is not committed
        (KillAt("ferryman.services.payments.api:shown", "before", 2), 200),  # it is, and nobody was told
    ],
    ids=["before the commit", "after it"],
)
def test_a_payment_whose_answer_was_lost_to_a_kill_is_sent_again_and_recorded_once(
    ferryman: Launcher, environment: dict[str, str], ferryman_db: Database, kill_at: KillAt, status: int
) -> None:
    """N1, N2, N5: a client without an answer repeats its request with the same body."""
    first, second = payment(reference="geheim"), payment()
    killed = ferryman.start("run", "api", env=environment, kill_at=kill_at)
    client = ready(killed)
    assert client.post(first).status == 201
    with pytest.raises((http.client.HTTPException, OSError)):
        client.post(second)
    assert killed.wait() == -signal.SIGKILL
    again = ferryman.start("run", "api", env=environment)
    client = ready(again)
    assert client.post(first).status == 200
    assert client.post(second).status == status
    assert stands(ferryman_db, first["uuid"]) == stands(ferryman_db, second["uuid"]) == (1, 1)
    again.send(signal.SIGTERM)
    assert again.wait() == 0, again.transcript()


# At COMMIT, a payment waits for whoever holds the lock.
SLOW_COMMIT = """
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON payments.requests DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_at_commit();
"""
AT_COMMIT = "SELECT 1 FROM pg_stat_activity WHERE query ILIKE 'commit%' AND wait_event_type = 'Lock'"


def test_a_payment_whose_commit_was_never_answered_is_recorded_once(
    ferryman: Launcher, environment: dict[str, str], ferryman_db: Database, ferryman_database_url: str
) -> None:
    """N1, N5: the connection breaks during COMMIT, so the API itself does not know the result."""
    place = conninfo.conninfo_to_dict(ferryman_database_url)
    with FaultProxy(f"{place['host']}:{place['port']}") as wire, psycopg.connect(ferryman_database_url) as holder:
        url = conninfo.make_conninfo(ferryman_database_url, host="127.0.0.1", port=wire.port)
        running = ferryman.start("run", "api", env=environment | {"FERRYMAN_DATABASE_URL": url})
        client, body, answers = ready(running), payment(), list[Answer]()
        ferryman_db.execute(SLOW_COMMIT)
        holder.execute("SELECT pg_advisory_xact_lock(4711)")
        asking = threading.Thread(target=lambda: answers.append(client.post(body)))
        asking.start()
        running.until(lambda: ferryman_db.execute(AT_COMMIT).fetchone(), "COMMIT")
        wire.faults = Faults(cut_after_bytes=0, cut_direction="to_client")
        holder.commit()
        asking.join(20)
        wire.heal()
        assert [each.status for each in answers] == [503]
        # While the API believes that its database is away, it refuses at once, and the client asks again.
        status = running.until(lambda: (got := client.post(body).status) != 503 and got, "an answer")
        assert status == 200
    assert stands(ferryman_db, body["uuid"]) == (1, 1)


def test_sigterm_answers_the_request_in_flight_takes_no_other_and_exits_0(
    ferryman: Launcher, environment: dict[str, str], ferryman_db: Database, ferryman_database_url: str
) -> None:
    """N16, N14: the request waits for a row that another transaction inserts, and gives up; nothing is logged."""
    running = ferryman.start("run", "api", env=environment)
    client = ready(running)
    body = payment(reference="geheim")
    answers: list[Answer] = []
    with psycopg.connect(ferryman_database_url) as other:
        other.execute(
            "INSERT INTO payments.requests (uuid, wallet_id, amount, currency, due_at) "
            "VALUES (%s, %s, 1, 'EUR', now())",
            (body["uuid"], body["wallet_id"]),
        )
        asking = threading.Thread(target=lambda: answers.append(client.post(body)))
        asking.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '-- payments.record%%' AND wait_event_type = 'Lock'"
        running.until(lambda: ferryman_db.execute(waiting).fetchone(), "waiting for the row")
        running.send(signal.SIGTERM)
        running.until(lambda: refused(client), "refusing others")
        assert running.alive
        other.rollback()
    asking.join(10)
    assert [each.status for each in answers] == [201]
    assert running.wait() == 0, running.transcript()
    assert stands(ferryman_db, body["uuid"]) == (1, 1)
    for secret in ("geheim", token("shop"), body["wallet_id"]):
        assert secret not in running.stderr


def refused(client: Client) -> bool:
    try:
        client.get("/payments")
    except OSError:
        return True
    return False


def test_a_client_that_never_finishes_does_not_delay_the_end(ferryman: Launcher, environment: dict[str, str]) -> None:
    """N16: such a client loses nothing."""
    running = ferryman.start("run", "api", env=environment | {"FERRYMAN_SERVICE__DRAIN_SECONDS": "3"})
    port = ready(running).port
    half = http.client.HTTPConnection("127.0.0.1", port)
    half.putrequest("PUT", "/internal/requests/x")
    half.putheader("Authorization", f"Bearer {token('wallet')}")
    half.putheader("Content-Length", "100")
    half.endheaders(b"{")
    running.send(signal.SIGTERM)
    assert running.wait(10) == 0, running.transcript()
    half.close()


def test_running_out_of_descriptors_costs_one_log_line_a_second(
    ferryman: Launcher, environment: dict[str, str]
) -> None:
    """N12, N11: it was two thousand lines for each connection that could not be accepted."""
    running = ferryman.start("run", "api", env=environment)
    client = ready(running)

    def lines() -> int:
        return running.stderr.count("\n")

    limits = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)
    few = len(os.listdir(f"/proc/{running.pid}/fd")) + 5
    before, began = lines(), time.monotonic()
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (few, limits[1]))
    with ExitStack() as clients:
        for _ in range(200):
            clients.enter_context(socket.create_connection(("127.0.0.1", client.port)))
        running.until(lambda: lines() >= before + 3, "three lines")
        assert time.monotonic() - began > 1.9
        assert lines() <= before + 4
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, limits)
    running.until(lambda: not refused(client), "recovery")
    assert client.post(payment()).status == 201


def test_without_a_token_it_does_not_start_and_says_how_to_make_one(
    ferryman: Launcher, ferryman_database_url: str
) -> None:
    refusing = ferryman.run("run", "api", env={"FERRYMAN_DATABASE_URL": ferryman_database_url})
    assert refusing.wait() == 3
    assert "openssl rand -hex 32" in refusing.stderr
