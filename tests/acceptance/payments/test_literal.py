"""The literal mode with real processes, beyond the sentences of its document (test_chancepay.py)."""

import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest

from support.chancepay import COMMANDS, ChancePay, http, listening, new_chancepay, one, stop
from support.launch import KillAt, Launcher
from support.published import read_topic, readyz

# The topic and the group have the names that they have everywhere: one test at a time.
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]


@pytest.fixture
def chancepay(ferryman: Launcher, ferryman_kafka: str, ferryman_postgres: str) -> Iterator[ChancePay]:
    with new_chancepay(ferryman, ferryman_kafka, ferryman_postgres) as made:
        yield made


def test_a_payment_is_deducted_and_reported(chancepay: ChancePay) -> None:
    """Sections 1 and 4: no result leaves by Kafka."""
    of = chancepay.open(500)
    paid, refused = chancepay.pay(500, of), chancepay.pay(1, of)
    chancepay.send()
    assert chancepay.row(paid) == ("PUBLISHED", 0)
    wallet = chancepay.start()
    wallet.until(lambda: chancepay.puts(paid) and chancepay.puts(refused), "both answers")
    said_of = {"wallet_id": str(of), "currency": "EUR"}
    assert chancepay.puts(paid) == [{"status": "SUCCEEDED", "reason": None, "amount": 500, **said_of}]
    assert chancepay.puts(refused) == [
        {"status": "FAILED", "reason": "INSUFFICIENT_FUNDS", "amount": 1, **said_of},
    ]
    stop(wallet)
    assert chancepay.balance(of) == 0
    assert one(chancepay.wallet, "SELECT count(*) FROM ferryman.outbox") == 0


def test_two_relays_publish_each_row_once(chancepay: ChancePay) -> None:
    relays = [chancepay.relay(), chancepay.relay()]
    for relay in relays:
        relay.until(lambda relay=relay: readyz(relay) == "ready", "readiness")  # type: ignore[misc]
    uuids = [chancepay.pay(1, uuid4()) for _ in range(300)]
    pending = "SELECT count(*) FROM payments.outbox WHERE status = 'PENDING'"
    relays[0].until(lambda: one(chancepay.payments, pending) == 0, "the last of them")
    for relay in relays:
        stop(relay)
    ids = [each.id for each in read_topic(chancepay.kafka, COMMANDS)]
    assert [ids.count(str(uuid)) for uuid in uuids] == [1] * 300


def test_a_relay_killed_before_it_settles_republishes_the_same_id_and_key(
    chancepay: ChancePay,
) -> None:
    """N1, N3: the lease of the killed relay expires, and another relay takes over."""
    of = chancepay.open(500)
    uuid = chancepay.pay(100, of)
    killed = chancepay.relay(KillAt.before_step("relay", "settle rows"))
    assert killed.wait() == -signal.SIGKILL
    assert chancepay.row(uuid) == ("PENDING", 1)
    chancepay.send()
    assert chancepay.row(uuid) == ("PENDING", 1), "its lease is not over"
    chancepay.payments.execute("UPDATE payments.outbox SET last_attempt_at = last_attempt_at - interval '1 h'")
    chancepay.send()
    assert chancepay.row(uuid) == ("PUBLISHED", 1)
    copies = chancepay.copies(uuid)
    assert len(copies) == 2
    assert {key for key, _ in copies} == {str(of)}
    assert len(set(copies)) == 1
    wallet = chancepay.start()
    wallet.until(lambda: chancepay.puts(uuid), "the answer")
    stop(wallet)
    assert chancepay.balance(of) == 400


@pytest.mark.parametrize(
    ("kill_at", "taken"),
    [
        (KillAt("ferryman.services.wallet.store:book", "after"), 0),  # its transaction is not committed
        # it is committed, and nobody was told
        (KillAt("ferryman.consumer.after_commit:AfterCommitThread.submit", "before"), 100),
    ],
    ids=["before the commit", "after it"],
)
def test_a_killed_literal_wallet_takes_a_payment_at_most_once(
    chancepay: ChancePay, kill_at: KillAt, taken: int
) -> None:
    """N5: the payment stays PENDING, as in section 6 of the document."""
    of = chancepay.open(500)
    lost = chancepay.pay(100, of)
    chancepay.send()
    killed = chancepay.start(kill_at, FERRYMAN_KAFKA__SESSION_TIMEOUT_MS="2000")
    assert killed.wait() == -signal.SIGKILL
    assert chancepay.balance(of) == 500 - taken
    chancepay.payments.execute("UPDATE payments.outbox SET status = 'PENDING'")
    after = chancepay.pay(50, of)
    chancepay.send()
    wallet = chancepay.start(FERRYMAN_KAFKA__SESSION_TIMEOUT_MS="2000")
    wallet.until(lambda: chancepay.puts(after), "the payment behind it")
    stop(wallet)
    assert len(chancepay.copies(lost)) == 2
    assert (chancepay.balance(of), chancepay.puts(lost), chancepay.status(lost)) == (450 - taken, [], "PENDING")
    assert chancepay.wallet.execute("SELECT * FROM wallet.unbalanced").fetchall() == []


def test_a_wrongly_described_table_is_refused_with_the_ddl(chancepay: ChancePay) -> None:
    chancepay.payments.execute("ALTER TABLE payments.outbox DROP COLUMN last_error")
    relay = chancepay.relay()
    assert relay.wait() == 3, relay.transcript()
    assert "ALTER TABLE payments.outbox ADD COLUMN last_error text;" in relay.stderr


def test_a_payment_requested_by_http_is_carried_out(chancepay: ChancePay) -> None:
    """Sections 1 to 5 with the real API at both ends: POST, outbox, Kafka, wallet, PUT."""
    api = chancepay.api()
    url = listening(api)
    of, uuid = chancepay.open(900), uuid4()
    asked = {"uuid": str(uuid), "wallet_id": str(of), "amount": 500, "currency": "EUR"}
    assert http("POST", f"{url}/payments", asked)[0] == 201
    status, problem = http("POST", f"{url}/payments", {**asked, "uuid": str(uuid4()), "fulfil": True})
    assert (status, problem["errors"][0]["field"]) == (422, "fulfil")
    chancepay.send()
    wallet = chancepay.start(FERRYMAN_PAYMENTS__INTERNAL_URL=url)
    wallet.until(lambda: http("GET", f"{url}/payments/{uuid}")[1]["status"] == "SUCCEEDED", "the outcome")
    assert chancepay.balance(of) == 400
    assert http("POST", f"{url}/payments", asked)[0] == 200
    stop(wallet)
    stop(api)
    audited = chancepay.audit(code=0)
    assert (audited["verdict"], audited["counts"]["outcomes"]) == ("ok", {"SUCCEEDED": 1})
    traced = chancepay.trace(uuid)
    assert (traced["now"], traced["next"]) == ("SUCCEEDED", None)
    assert [each["what"] for each in traced["events"]] == [
        "requested", "appended", "published", "received", "handled", "SUCCEEDED",
    ]  # fmt: skip
