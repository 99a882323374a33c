"""The guarantees of the literal mode's document, section by section, with real processes."""

import signal
from collections.abc import Iterator
from urllib.error import URLError
from uuid import uuid4

import pytest

from ferryman.services.payments.bodies import Result
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.service import tell
from ferryman.testing.receiver import Answer
from support.chancepay import QUICKLY, TOKEN, ChancePay, http, listening, new_chancepay, one, stop
from support.launch import KillAt, Launcher
from support.published import readyz, said, stays

# The topic and the group have the names that they have everywhere: one test at a time.
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]


@pytest.fixture
def chancepay(ferryman: Launcher, ferryman_kafka: str, ferryman_postgres: str) -> Iterator[ChancePay]:
    with new_chancepay(ferryman, ferryman_kafka, ferryman_postgres) as made:
        yield made


def test_1_request_is_always_recorded(chancepay: ChancePay) -> None:
    """Section 1: request and outbox row are written together or not at all, and kept while Kafka is away."""
    api = chancepay.api(kill_at=KillAt("ferryman.services.payments.store:enqueue", "after", 3))
    url = listening(api)
    of = chancepay.open(900)
    asked = [{"uuid": str(uuid4()), "wallet_id": str(of), "amount": 1, "currency": "EUR"} for _ in range(4)]
    assert [http("POST", f"{url}/payments", each)[0] for each in asked[:2]] == [201, 201]
    with pytest.raises((URLError, ConnectionError)):
        http("POST", f"{url}/payments", asked[2])  # killed before its COMMIT
    assert api.wait() == -signal.SIGKILL
    recorded = "SELECT (SELECT count(*) FROM payments.requests), (SELECT count(*) FROM payments.outbox)"
    assert chancepay.payments.execute(recorded).fetchone() == (2, 2)
    again = chancepay.api()
    url = listening(again)
    assert [http("POST", f"{url}/payments", each)[0] for each in asked] == [200, 200, 201, 201]
    assert chancepay.payments.execute(recorded).fetchone() == (4, 4)
    assert all(http("GET", f"{url}/payments/{each['uuid']}")[1]["status"] == "PENDING" for each in asked)
    stop(again)


def test_2_message_publication_is_retried_but_bounded(chancepay: ChancePay) -> None:
    """Section 2: `try_count < 5`, then a terminal PENDING case. Kafka is away all the time."""
    (chancepay.ferryman.folder / "ferryman.toml").write_text(QUICKLY)
    uuid = chancepay.pay(1, uuid4())
    relay = chancepay.relay(
        FERRYMAN_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:9", FERRYMAN_KAFKA__TIMEOUT_SECONDS="0.5",
        FERRYMAN_RELAY__DEADLINE_SECONDS="2",
    )  # fmt: skip
    relay.until(lambda: len(said(relay, "publishing failed")) == 5, "five attempts that failed")
    assert stays(lambda: chancepay.row(uuid) == ("PENDING", 5), 1.0)
    error = one(chancepay.payments, "SELECT last_error FROM payments.outbox WHERE uuid = %s", uuid)
    assert "not settled" not in error, error
    assert chancepay.status(uuid) == "PENDING"
    stop(relay)
    chancepay.send()  # Kafka is there again, and nobody cares
    assert chancepay.row(uuid) == ("PENDING", 5)
    assert chancepay.copies(uuid) == []
    assert [each["given_up"] for each in said(relay, "publishing failed")] == [0, 0, 0, 0, 1]


def test_3_listener_processes_once_success_or_fail(chancepay: ChancePay) -> None:
    """Section 3: at most once."""
    of = chancepay.open(500)
    vanishing = chancepay.pay(100, of)
    chancepay.wallet.execute(
        f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a bug'; END $$;"
        f"CREATE TRIGGER fail BEFORE INSERT ON wallet.ledger FOR EACH ROW "
        f"WHEN (NEW.request_id = '{vanishing}') EXECUTE FUNCTION fail()"
    )
    chancepay.send()
    wallet = chancepay.start()
    wallet.until(lambda: said(wallet, "vanished"), "the error log")
    [told] = said(wallet, "vanished")
    assert (told["level"], told["id"]) == ("error", str(vanishing))
    chancepay.wallet.execute("DROP TRIGGER fail ON wallet.ledger")
    after = chancepay.pay(50, of)
    chancepay.send()
    wallet.until(lambda: chancepay.puts(after), "the next payment")
    stop(wallet)
    again = chancepay.start()  # and not after a restart either
    again.until(lambda: readyz(again) == "ready", "readiness")
    last = chancepay.pay(25, of)
    chancepay.send()
    again.until(lambda: chancepay.puts(last), "the payment after that")
    stop(again)
    assert chancepay.balance(of) == 500 - 50 - 25
    assert (chancepay.puts(vanishing), chancepay.status(vanishing)) == ([], "PENDING")
    why, following = chancepay.printed(vanishing)
    assert "wallet took the command: RECEIVED, at most once: it failed, had no effect and never will" in why
    assert following == f"ferryman reconcile payments --id {vanishing}"
    [case] = chancepay.reconcile(*following.split()[3:], code=1)["cases"]
    assert (case["uuid"], case["cause"]) == (str(vanishing), "consumer_failed")


def test_4_if_inbox_insert_and_deduct_succeed_request_is_notified_best_effort(
    chancepay: ChancePay,
) -> None:
    """Sections 4 and 6: it remains PENDING until somebody reconciles it."""
    of = chancepay.open(500)
    untold = chancepay.pay(100, of)
    chancepay.http.answer = lambda request: Answer(503 if request.path.endswith(str(untold)) else 204)
    chancepay.send()
    wallet = chancepay.start()
    wallet.until(lambda: said(wallet, "payment not told"), "the warning")
    [told] = said(wallet, "payment not told")
    assert (told["level"], told["request_id"]) == ("warning", str(untold))
    after = chancepay.pay(100, of)
    chancepay.send()
    wallet.until(lambda: chancepay.puts(after), "the next payment")
    stop(wallet)
    assert len(chancepay.puts(untold)) == 1
    assert TOKEN not in wallet.stderr
    assert (chancepay.balance(of), chancepay.status(untold)) == (300, "PENDING")


def test_5_idempotent_consumption_ensures_no_double_deduct(chancepay: ChancePay) -> None:
    """Section 5: no double deduct."""
    of = chancepay.open(500)
    uuid = chancepay.pay(100, of)
    chancepay.send()
    wallet = chancepay.start()
    wallet.until(lambda: chancepay.puts(uuid), "the answer")
    chancepay.payments.execute("UPDATE payments.outbox SET status = 'PENDING'")
    after = chancepay.pay(50, of)
    chancepay.send()
    wallet.until(lambda: chancepay.puts(after), "the payment behind it")
    stop(wallet)
    copies = chancepay.copies(uuid)
    assert len(copies) == 2
    assert len(set(copies)) == 1
    assert len(chancepay.puts(uuid)) == 1
    assert chancepay.balance(of) == 350


@pytest.mark.slow
def test_6_request_side_may_remain_pending_forever(chancepay: ChancePay) -> None:
    """Every reason shows as PENDING, is named by `reconcile`, and is repaired. Slow: it runs five processes in turn."""
    of = chancepay.open(500)
    unpublished, vanished, untold = chancepay.pay(1, of), chancepay.pay(2, of), chancepay.pay(4, of)
    chancepay.payments.execute(
        "UPDATE payments.outbox SET try_count = 5, last_error = 'Kafka was away' WHERE uuid = %s", (unpublished,)
    )
    chancepay.wallet.execute(
        f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a bug'; END $$;"
        f"CREATE TRIGGER fail BEFORE INSERT ON wallet.ledger FOR EACH ROW "
        f"WHEN (NEW.request_id = '{vanished}') EXECUTE FUNCTION fail()"
    )
    chancepay.http.answer = lambda _request: Answer(503)
    chancepay.send()
    wallet = chancepay.start()
    wallet.until(lambda: said(wallet, "vanished") and said(wallet, "payment not told"), "what goes wrong")
    stop(wallet)
    assert {chancepay.status(each) for each in (unpublished, vanished, untold)} == {"PENDING"}

    looked = chancepay.reconcile(code=1)
    causes = {case["uuid"]: case["cause"] for case in looked["cases"]}
    assert causes == {
        str(unpublished): "never_published", str(vanished): "consumer_failed", str(untold): "result_lost",
    }  # fmt: skip

    api = chancepay.api()
    url = listening(api)
    chancepay.wallet.execute("DROP TRIGGER fail ON wallet.ledger")
    mended = chancepay.reconcile("--yes", "--reason", "the bug is gone", code=0)
    assert mended["repaired"] == {"republish": 2, "rereport": 1}
    chancepay.send()
    wallet = chancepay.start(FERRYMAN_PAYMENTS__INTERNAL_URL=url)
    for each in (unpublished, vanished, untold):
        wallet.until(lambda each=each: chancepay.status(each) == "SUCCEEDED", "its outcome")  # type: ignore[misc]
    stop(wallet)
    stop(api)
    assert chancepay.balance(of) == 500 - 1 - 2 - 4
    assert chancepay.reconcile(code=0)["cases"] == []


def test_payments_that_succeeded_or_remain_pending_pass_the_audit(chancepay: ChancePay) -> None:
    """Sections 1 to 6: the books agree whether the request was notified or not."""
    of = chancepay.open(500)
    told, untold = chancepay.pay(100, of), chancepay.pay(50, of)
    chancepay.send()
    wallet = chancepay.start()
    wallet.until(lambda: chancepay.puts(told) and chancepay.puts(untold), "both answers")
    stop(wallet)
    with chancepay.payments.transaction():
        rules = Rules(PaymentsSettings(mode="literal"))
        tell(chancepay.payments, told, Result(status="SUCCEEDED"), rules=rules, headers={})
    found = chancepay.audit(code=0)
    assert found["counts"]["requests"] == {"PENDING": 1, "SUCCEEDED": 1}
    assert (found["counts"]["receipts"], found["sums"]["EUR"]["deducted"]) == ({"found": 2}, 100)
