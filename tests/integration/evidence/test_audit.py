"""The audit: never a false alarm while the system is busy, and each kind of damage found and named."""

import threading
import time
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman.runtime.uuids import derived
from ferryman.services.payments.bodies import Result
from ferryman.services.payments.evidence import auditing, invariants
from ferryman.services.payments.evidence.auditing import begin
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import message_id
from ferryman.services.payments.service import tell
from ferryman.services.payments.store import Request
from support.pace import in_time
from support.paying import Desk, accepted, failed
from support.town import ACT, Town, damage, over, sides_of, whats
from support.walleting import asked, transact

RECEIPTS_GONE, RESULTS_GONE = invariants.GONE["receipts.expired"], invariants.GONE["results.expired"]


def one_of_each(town: Town) -> dict[str, Request]:
    """Done; refused; cancelled after it was taken, and before; on its way in every state; stuck and settled."""
    made = {name: town.asks() for name in ("done", "late", "stopped", "asked", "taken", "stuck")}
    made["poor"] = town.asks(amount=99_999)
    made["fulfilled"] = town.asks(fulfil=True)
    over(town, made["done"], made["poor"], made["fulfilled"])
    town.consume(made["late"], made["taken"], made["stuck"])
    town.desk.late(made["late"], made["stopped"], made["stuck"])
    cancels = [each for each in town.commands(made["stopped"]) if each.type == "wallet.cancel"]
    transact(town.books.db, cancels)
    over(town, made["late"], made["stopped"])
    town.desk.apply(failed(made["stuck"], "UNKNOWN", "CANCEL"))
    town.reconciler.settle(made["stuck"].uuid, ACT, yes=True)
    return made


def test_books_in_order_are_ok_and_each_class_is_counted(town: Town) -> None:
    """N5, N6: whatever becomes of a payment."""
    made = one_of_each(town)
    books = town.audited()
    said = books.as_json()
    assert (whats(books), said["verdict"]) == ([], "ok")
    assert said["counts"] == {
        "requests": {"FAILED": 4, "PENDING": 3, "SUCCEEDED": 1},
        "commands": {"on_their_way": 1, "received": 7},
        "receipts": {"found": 7, "none": 1},
        "ledger": {"deducted": 4, "given_back": 1, "none": 1, "refused": 2},
        "results": {"applied": 5, "by_hand": 1, "on_their_way": 2},
        "outcomes": {"FAILED": 4, "SUCCEEDED": 1},
        "wallets": {"looked_at": 8},
    }
    assert said["in_flight"] == 3
    assert said["sums"]["EUR"] == {
        "succeeded": 500, "deducted": 500, "failed_net": 500, "in_flight_net": 1000,
        "wallets": 8 * 10_000 - 4 * 500, "opened": 8 * 10_000, "by_hand": 500, "giving_back": 0,
        "ledger": 8 * 10_000 - 4 * 500, "taken": 5 * 500, "given_back": 500,
    }  # fmt: skip
    row = town.desk.db.execute("SELECT min(created_at) FROM payments.requests WHERE status = 'PENDING'").fetchone()
    assert row == (said["oldest_in_flight"],)
    assert made["done"].amount == 500


def test_an_audit_changes_nothing_and_needs_no_right_to(town: Town) -> None:
    one_of_each(town)
    for db in (town.desk.db, town.books.db):
        db.execute("SET ROLE ferryman_monitor")
    assert town.audited().verdict == "ok"


def test_payments_outside_of_the_window_are_neither_counted_nor_orphans(town: Town) -> None:
    early, late = town.asks(), town.asks()
    over(town, early, late)
    town.ages(early)
    row = town.desk.db.execute("SELECT now() - interval '30 min'").fetchone()
    assert row is not None
    for window in ({"since": row[0]}, {"until": row[0]}):
        books = town.audited(**window)
        assert whats(books) == []
        assert books.counts["requests.SUCCEEDED"] == (0 if "since" in window else 1) + ("since" in window)
    assert town.audited().counts["requests.SUCCEEDED"] == 2


def test_default_window_ends_some_seconds_ago(town: Town) -> None:
    over(town, town.asks())
    assert begin(town.sides).run().counts["requests.SUCCEEDED"] == 0


def test_system_in_which_nothing_ever_ended_is_wrong_after_a_while(town: Town) -> None:
    """Every number was in order, as nothing had moved at all."""
    payments = [town.asks(), town.asks()]
    assert town.audited().verdict == "ok"
    town.ages(*payments)
    town.published(town.desk.db)
    books = town.audited()
    assert (whats(books), books.verdict) == ([("standstill", None)], "wrong")
    assert "2 payments were requested" in books.wrong[0].why
    over(town, payments[0])
    assert town.audited().verdict == "ok"


# --- damage


def forget_ledger(town: Town, payment: Request) -> str:
    town.books.db.execute("DELETE FROM wallet.ledger WHERE request_id = %s AND kind = 'DEDUCT'", (payment.uuid,))
    return "success_without_deduction"


def change_amount(town: Town, payment: Request) -> str:
    town.books.db.execute("UPDATE wallet.ledger SET amount = amount - 1 WHERE request_id = %s", (payment.uuid,))
    return "mismatch"


def change_wallet(town: Town, payment: Request) -> str:
    town.books.db.execute("UPDATE wallet.ledger SET wallet_id = %s WHERE request_id = %s", (uuid4(), payment.uuid))
    return "mismatch"


def take_twice(town: Town, payment: Request) -> str:
    town.books.db.execute(
        "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, balance, currency) "
        "SELECT request_id, 'another', kind, wallet_id, amount, balance, currency FROM wallet.ledger "
        "WHERE request_id = %s", (payment.uuid,),
    )  # fmt: skip
    return "two_deductions"


def give_back(town: Town, payment: Request) -> str:
    transact(town.books.db, [asked("REFUND", payment.wallet_id, payment.uuid, amount=payment.amount)])
    return "success_without_deduction"


def give_back_a_part(town: Town, payment: Request) -> str:
    transact(town.books.db, [asked("REFUND", payment.wallet_id, payment.uuid, amount=1)])
    return "success_given_back"


def give_too_much(town: Town, payment: Request) -> str:
    town.books.db.execute(
        "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, balance, currency) "
        "SELECT request_id, step, 'REFUND', wallet_id, 2 * -amount, balance, currency FROM wallet.ledger "
        "WHERE request_id = %s", (payment.uuid,),
    )  # fmt: skip
    return "given_too_much"


def fail_it(town: Town, payment: Request) -> str:
    town.desk.db.execute("UPDATE payments.requests SET state = 'FAILED' WHERE uuid = %s", (payment.uuid,))
    return "failure_with_deduction"


def forget_request(town: Town, payment: Request) -> str:
    town.desk.db.execute("DELETE FROM payments.requests WHERE uuid = %s", (payment.uuid,))
    return "no_request"


def forget_receipt(town: Town, _payment: Request) -> str:
    town.books.db.execute("DELETE FROM ferryman.inbox")
    return "no_receipt"


DAMAGES = [
    forget_ledger, change_amount, change_wallet, take_twice, give_back, give_back_a_part, give_too_much, fail_it,
    forget_request, forget_receipt,
]  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES, ids=[each.__name__ for each in DAMAGES])
def test_each_kind_of_damage_is_found_and_named_with_its_payment(town: Town, how: Any) -> None:
    payment = town.asks()
    over(town, payment)
    neighbour = town.asks()
    assert town.audited().verdict == "ok"
    with damage(town.desk.db), damage(town.books.db):
        what = how(town, payment)
    books = town.audited()
    assert (what, payment.uuid) in whats(books)
    assert neighbour.uuid not in {each.id for each in books.wrong}
    assert books.as_json()["verdict"] == "wrong"
    assert all(each.why and each.next for each in books.wrong)


def test_ended_payment_without_a_result_is_wrong_unless_the_wallet_may_have_told_it(town: Town) -> None:
    cancelled, told = town.asks(), town.asks()
    town.consume(cancelled)
    town.desk.late(cancelled)
    over(town, cancelled, told)
    town.desk.db.execute("DELETE FROM ferryman.inbox")
    books = town.audited()
    assert whats(books) == [("no_result", cancelled.uuid)]
    assert books.counts["results.behind"] == 1


def test_payment_reported_as_failed_before_the_wallet_decided_has_its_time(town: Town) -> None:
    """The report by HTTP was wrong, or early: the answer comes behind it."""
    payment, desk = town.asks(), town.desk
    with desk.db.transaction():
        early = Result(status="FAILED", reason="UNKNOWN")
        tell(desk.db, payment.uuid, early, rules=desk.rules, headers={})
    assert whats(town.audited()) == []
    town.ages(payment)
    assert whats(town.audited()) == [("no_ledger", payment.uuid)]
    over(town, payment)
    assert whats(town.audited()) == []


def test_failure_unknown_to_the_ledger_is_found(town: Town) -> None:
    payment = town.asks(amount=99_999)
    over(town, payment)
    with damage(town.books.db):
        town.books.db.execute("DELETE FROM wallet.ledger WHERE request_id = %s", (payment.uuid,))
    assert whats(town.audited()) == [("no_ledger", payment.uuid)]


@pytest.mark.parametrize("change", ["balance + 1", "-1"])
def test_wallet_that_disagrees_with_its_ledger_is_found(town: Town, change: str) -> None:
    payment = town.asks()
    over(town, payment)
    town.books.db.execute("ALTER TABLE wallet.wallets DROP CONSTRAINT wallets_balance_check")
    town.books.db.execute(f"UPDATE wallet.wallets SET balance = {change}")
    books = town.audited()
    assert whats(books) == [("unbalanced", payment.wallet_id), ("unequal_sums", None)]
    assert str(payment.wallet_id) in books.wrong[0].next


# --- money that was made, or has vanished: of all time, whatever the window


def mint(town: Town, payment: Request) -> tuple[str, UUID]:
    town.books.db.execute("ALTER TABLE wallet.ledger DROP CONSTRAINT IF EXISTS ledger_opens_once")
    town.books.db.execute(
        "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, balance, currency) "
        "VALUES (%s, 'open', 'OPEN', %s, 1000000, 1000000, 'EUR')", (uuid4(), payment.wallet_id),
    )  # fmt: skip
    town.books.db.execute("UPDATE wallet.wallets SET balance = balance + 1000000 WHERE id = %s", (payment.wallet_id,))
    return "minted", payment.wallet_id


def delete_wallet(town: Town, payment: Request) -> tuple[str, UUID]:
    town.books.db.execute("DELETE FROM wallet.wallets WHERE id = %s", (payment.wallet_id,))
    return "wallet_gone", payment.wallet_id


def take_next_year(town: Town, payment: Request) -> tuple[str, UUID]:
    town.books.db.execute(
        "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, balance, currency, decided_at) "
        "VALUES (%s, 'deduct', 'DEDUCT', %s, -100, 9400, 'EUR', now() + interval '1 year')",
        (uuid4(), payment.wallet_id),
    )
    town.books.db.execute("UPDATE wallet.wallets SET balance = balance - 100 WHERE id = %s", (payment.wallet_id,))
    return "from_future", payment.wallet_id


def refund_an_archived_payment(town: Town, payment: Request) -> tuple[str, UUID]:
    town.desk.db.execute("SELECT payments.archive(now() + interval '1 year', 'ann', 'kept elsewhere')").fetchall()
    town.books.db.execute(
        "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, balance, currency) "
        "SELECT request_id, step, 'REFUND', wallet_id, 2 * -amount, balance, currency FROM wallet.ledger "
        "WHERE request_id = %s", (payment.uuid,),
    )  # fmt: skip
    town.books.db.execute("UPDATE wallet.wallets SET balance = balance + 1000 WHERE id = %s", (payment.wallet_id,))
    return "given_too_much", payment.uuid


@pytest.mark.parametrize("window", [{}, {"since": timedelta(hours=-2)}], ids=["everything", "nothing"])
@pytest.mark.parametrize("how", [mint, delete_wallet, take_next_year])
def test_money_made_or_vanished_is_found_whatever_the_window(town: Town, how: Any, window: dict[str, Any]) -> None:
    """N5: in the wallet's database alone, the balances are what was opened, less what was taken and not given back."""
    payment, neighbour = town.asks(), town.asks()
    over(town, payment, neighbour)
    with damage(town.desk.db), damage(town.books.db):
        found = how(town, payment)
    books = town.audited(**window)
    assert found in whats(books)
    assert not {each.id for each in books.wrong} & {neighbour.uuid, neighbour.wallet_id}
    [wrong] = [each for each in books.wrong if (each.what, each.id) == found]
    assert str(payment.wallet_id) in wrong.next
    assert [each.what for each in books.wrong if each.id is None] == ([] if how is take_next_year else ["unequal_sums"])


def test_refund_of_an_archived_payment_that_gives_too_much_is_found(town: Town) -> None:
    payment, neighbour = town.asks(), town.asks()
    over(town, payment, neighbour)
    with damage(town.books.db):
        found = refund_an_archived_payment(town, payment)
    assert whats(town.audited()) == [found]


def test_decided_payment_that_stays_pending_past_its_age_is_found(town: Town) -> None:
    """N6: the result was even applied, by its receipt. A young one, or one that waits for a person, is in order."""
    lost, unanswered, young, stuck = (town.asks() for _ in range(4))
    over(town, lost)
    town.consume(unanswered, stuck)
    town.desk.late(stuck)
    town.desk.apply(failed(stuck, "UNKNOWN", "CANCEL"))
    with damage(town.desk.db):
        town.desk.db.execute(
            "UPDATE payments.requests SET state = 'DEDUCTING', due_at = now() WHERE uuid = %s", (lost.uuid,)
        )
    town.ages(lost, unanswered, stuck)
    town.consume(young)
    books = town.audited()
    assert sorted(whats(books)) == sorted([("not_ended", lost.uuid), ("not_ended", unanswered.uuid)])
    assert all(f"ferryman reconcile payments --id {each.id}" in each.next for each in books.wrong)


def test_given_back_in_another_currency_is_named_with_its_payment(town: Town) -> None:
    """Its sums would disagree, and nothing would say why."""
    payment = town.asks()
    town.consume(payment)
    town.desk.late(payment)
    over(town, payment)
    with damage(town.books.db):
        town.books.db.execute("UPDATE wallet.ledger SET currency = 'USD' WHERE kind = 'CANCEL'")
    books = town.audited()
    assert ("mismatch", payment.uuid) in whats(books)
    assert "named above" in next(each.next for each in books.wrong if each.what == "unequal_sums")


def test_ledger_entry_without_its_other_side_is_found(town: Town) -> None:
    payment = town.asks()
    over(town, payment)
    town.books.db.execute(
        "CREATE OR REPLACE VIEW wallet.entries AS SELECT l.request_id, l.step, l.kind, 'wallet' AS account, "
        "l.wallet_id, l.currency, l.amount, l.decided_at FROM wallet.ledger l WHERE l.amount <> 0"
    )
    assert ("lopsided", payment.uuid) in whats(town.audited())


def test_expired_evidence_is_reported_and_not_called_wrong(town: Town) -> None:
    payment, young = town.asks(), town.asks()
    town.consume(payment)
    town.desk.late(payment)
    over(town, payment, young)
    town.ages(payment, seconds=town.settings.consumer.receipts_retention_seconds + 3600)
    for db in (town.desk.db, town.books.db):
        db.execute("DELETE FROM ferryman.inbox WHERE received_at < now() - interval '30 days'")
    with damage(town.desk.db), damage(town.books.db):
        town.desk.db.execute("UPDATE payments.requests SET changed_at = created_at WHERE uuid = %s", (payment.uuid,))
    books = town.audited()
    assert (books.expired[RECEIPTS_GONE], books.expired[RESULTS_GONE]) >= (1, 1)
    assert payment.uuid not in {each.id for each in books.wrong}


def test_payment_fulfilled_once_its_receipts_are_forgotten_is_in_order(town: Town) -> None:
    payment = town.asks(fulfil=True)
    over(town, payment)
    town.ages(payment, seconds=town.settings.consumer.receipts_retention_seconds + 3600)
    for db in (town.desk.db, town.books.db):
        db.execute("DELETE FROM ferryman.inbox")
    town.desk.apply(accepted(payment))
    books = town.audited()
    assert (whats(books), town.desk.stands(payment)[0]) == ([], "SUCCEEDED")
    assert books.expired == {RECEIPTS_GONE: 1, RESULTS_GONE: 1}


def test_archived_payments_are_not_orphans_whatever_the_wallets_clock_says(town: Town) -> None:
    """Their uuids stand in `payments.archived`."""
    early, late = town.asks(), town.asks()
    over(town, early, late)
    town.ages(early, late)
    with damage(town.books.db):
        town.books.db.execute("UPDATE wallet.ledger SET decided_at = now() WHERE request_id = %s", (late.uuid,))
    town.desk.db.execute("SELECT payments.archive(now() - interval '1 min', 'ann', 'kept elsewhere')").fetchall()
    for db in (town.desk.db, town.books.db):
        db.execute("SET ROLE ferryman_monitor")
    books = town.audited()
    assert (whats(books), books.expired) == ([], {invariants.ARCHIVED: 2})


def test_lost_payment_is_an_orphan_even_if_it_was_booked_before_an_archive(town: Town) -> None:
    kept, lost = town.asks(), town.asks()
    over(town, kept, lost)
    town.ages(kept, lost)
    with damage(town.desk.db):
        town.desk.db.execute("DELETE FROM payments.requests WHERE uuid = %s", (lost.uuid,))
    town.desk.db.execute("SELECT payments.archive(now() + interval '1 year', 'ann', 'all of it')").fetchall()
    books = town.audited()
    assert whats(books) == [("no_request", lost.uuid)]
    assert books.expired[invariants.ARCHIVED] == 1


def test_findings_are_listed_up_to_a_limit_and_counted_whole(town: Town) -> None:
    payments = [town.asks() for _ in range(12)]
    over(town, *payments)
    with damage(town.desk.db):
        town.desk.db.execute("DELETE FROM payments.requests")
    audit = begin(town.sides, cut_seconds=-3600, moment_seconds=0.01)
    audit.books.most = 10
    books = audit.run()
    assert (len(books.wrong), books.wrongs) == (10, 12)


# --- under load


def test_audits_of_a_busy_system_find_nothing_wrong(town: Town, ferryman_database_url: str, monkeypatch: Any) -> None:
    """Requests are recorded, handled, cancelled and applied in both databases all the time; pages are small, so that
    much moves between two of them.
    """
    monkeypatch.setattr(auditing, "PAGE", 50)
    monkeypatch.setattr(auditing, "_BLOCKS", 1)
    stop, broken = threading.Event(), list[BaseException]()
    wallets = [town.books.open(1_000_000) for _ in range(20)]
    wallet_url = town.settings.section(PaymentsSettings).wallet_database_url
    assert wallet_url is not None

    def busy(seed: int) -> None:
        try:
            with (
                psycopg.connect(ferryman_database_url, autocommit=True) as ours,
                psycopg.connect(wallet_url.get_secret_value(), autocommit=True) as theirs,
            ):
                mine = Town(Desk(ours, town.codecs), type(town.books)(theirs, town.codecs), town.settings, town.codecs)
                while not stop.is_set():
                    round_of(mine, wallets, seed)
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=busy, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    with (
        psycopg.connect(ferryman_database_url, autocommit=True) as ours,
        psycopg.connect(wallet_url.get_secret_value(), autocommit=True) as theirs,
    ):
        found = list[tuple[str, UUID | None]]()
        counted, until = 0, time.monotonic() + 4
        while time.monotonic() < until or (counted <= 100 and not broken):
            books = begin(sides_of(ours, theirs, town.settings), cut_seconds=-3600, moment_seconds=0.05).run()
            found += whats(books)
            counted += books.counts["requests.SUCCEEDED"]
    stop.set()
    for thread in threads:
        thread.join()
    assert broken == []
    assert found == []
    assert counted > 100


def round_of(town: Town, wallets: list[UUID], seed: int) -> None:
    """Make a few payments: done, refused, cancelled before and after they were taken, reported as failed and taken all
    the same, and left on their way.
    """
    made = [
        Request(uuid4(), wallets[(seed + n) % len(wallets)], 10_000_000 if n % 5 == 4 else 10, "EUR") for n in range(20)
    ]
    town.desk.record(*made)
    commands = [
        asked("DEDUCT", each.wallet_id, each.uuid, amount=each.amount, id=message_id(each.uuid, "wallet.deduct", 1))
        for each in made
    ]
    transact(town.books.db, [*commands[:12], *commands[18:]])
    town.desk.apply(*[failed(each, "NO_WALLET") for each in made[18:]])  # not before: the ledger bears it out
    town.desk.late(*made[8:16])
    cancels = [
        asked("CANCEL", each.wallet_id, each.uuid, id=message_id(each.uuid, "wallet.cancel", 1)) for each in made[8:16]
    ]
    transact(town.books.db, [*cancels, *commands[12:16]])
    town.desk.apply(*town.results(*made))
    transact(town.books.db, [each for each in town.commands(*made[18:]) if each.type == "wallet.cancel"])


# --- how fast


@pytest.mark.prove
def test_an_audit_is_as_fast_as_its_pages(town: Town) -> None:
    """40,000 payments that are over, with all that belongs to them: ten seconds are for five times as many."""
    many = 40_000
    generate(town, many)
    began = time.monotonic()
    books = town.audited()
    seconds = time.monotonic() - began
    assert (books.verdict, books.counts["requests.SUCCEEDED"]) == ("ok", many)
    assert in_time(seconds, 10 * many / 200_000 * 2), f"{seconds:.1f} s"  # twice: a machine may be half as fast


def generate(town: Town, many: int, wallets: int = 100) -> None:
    """Payments of an earlier day, as they stand when they are over."""
    amounts = 10
    opened = [town.books.open(many * amounts) for _ in range(wallets)]
    made = [(uuid4(), opened[n % wallets]) for n in range(many)]
    ids = [message_id(uuid, "wallet.deduct", 1) for uuid, _ in made]
    columns = {"uuids": [uuid for uuid, _ in made], "wallets": [of for _, of in made], "ids": ids,
               "results": [derived(each, "wallet/0") for each in ids], "amount": amounts}  # fmt: skip
    receipts = (
        'INSERT INTO ferryman.inbox (consumer, id, status, outcome, hash, type, topic, partition, "offset") '
        "SELECT %(consumer)s, id, 'HANDLED', 'DONE', 'h', 't', 't', 0, 0 FROM unnest(%(given)s::uuid[]) id"
    )
    with damage(town.desk.db), damage(town.books.db):
        town.desk.db.execute(
            "INSERT INTO payments.requests (uuid, wallet_id, amount, currency, state, created_at) SELECT u, w, "
            "%(amount)s, 'EUR', 'SUCCEEDED', now() - interval '1 day' + n * interval '10 ms' "
            "FROM unnest(%(uuids)s::uuid[], %(wallets)s::uuid[]) WITH ORDINALITY x (u, w, n)", columns,
        )  # fmt: skip
        town.books.db.execute(
            "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, currency, balance) "
            "SELECT u, 'deduct', 'DEDUCT', w, -%(amount)s, 'EUR', 0 "
            "FROM unnest(%(uuids)s::uuid[], %(wallets)s::uuid[]) x (u, w)", columns,
        )  # fmt: skip
        town.books.db.execute(
            "UPDATE wallet.wallets w SET balance = (SELECT sum(amount) FROM wallet.ledger l WHERE l.wallet_id = w.id)"
        )
        town.books.db.execute(receipts, {"consumer": "wallet", "given": ids})
        town.desk.db.execute(receipts, {"consumer": "payments", "given": columns["results"]})
