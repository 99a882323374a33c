"""The wallet and its rules: each operation happens once, in any order and however often it is requested."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ferryman import Misconfigured, Transient, use_schemas
from ferryman.cli.wiring import settings_class
from ferryman.schemas import active
from ferryman.services.wallet import literal_wallet
from ferryman.services.wallet.consumer import consumer, entry_id, wallet_of
from ferryman.services.wallet.rules import Kind
from support.walleting import Books, Database, asked, transact


@pytest.fixture
def books(ferryman_db: Database) -> Iterator[Books]:
    ferryman_db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    yield Books(ferryman_db, use_schemas())
    active.forget()


def short(answer: dict[str, Any]) -> tuple[Any, ...]:
    """Return the kind, the outcome and the balance of an answer."""
    return answer["kind"], answer.get("reason", "SUCCEEDED"), answer.get("amount"), answer.get("balance")


def test_a_deduction_is_taken_booked_and_reported_to_its_payment(books: Books) -> None:
    of, request = books.open(900), uuid4()
    [answer] = books.handle(asked("DEDUCT", of, request, amount=500, attempt=3))
    assert short(answer) == ("DEDUCT", "SUCCEEDED", 500, 400)
    assert (answer["topic"], answer["type"], answer["key"]) == ("wallet.results", "wallet.succeeded", str(request))
    assert (answer["request_id"], answer["wallet_id"], answer["attempt"]) == (request, of, 3)
    assert answer["currency"] == "EUR"
    entries = books.db.execute(
        "SELECT account, amount FROM wallet.entries WHERE request_id = %s ORDER BY account", (request,)
    ).fetchall()
    assert entries == [("payments", 500), ("wallet", -500)]
    assert books.balance(of) == 400
    books.balance_out()


def test_a_change_of_balance_is_published_once_if_events_are_on(books: Books) -> None:
    """The id is derived from the operation, and operations without an effect publish nothing."""
    books.consumer = consumer(events=True)
    of, request = books.open(900), uuid4()
    first = asked("DEDUCT", of, request, amount=500)
    answers = books.handle(
        first, asked("DEDUCT", of, request, amount=500, attempt=2), asked("DEDUCT", of, uuid4(), amount=401),
        asked("CANCEL", of, request), asked("CANCEL", of, uuid4()),
    )  # fmt: skip
    told = [each for each in answers if each["type"] == "wallet.balance-changed"]
    assert [(each["change"], each["balance"]) for each in told] == [(-500, 400), (500, 900)]
    kinds: tuple[Kind, ...] = ("DEDUCT", "CANCEL")
    for each, kind in zip(told, kinds, strict=True):
        assert (each["topic"], each["key"], each["wallet_id"]) == ("wallet.events", str(of), of)
        assert each["id"] == each["entry_id"] == entry_id(request, "deduct", kind)
    assert len(answers) == 5 + len(told)
    again = books.handle(first, asked("DEDUCT", of, request, amount=500, attempt=3))
    assert [each["type"] for each in again] == ["wallet.succeeded", "wallet.balance-changed", "wallet.succeeded"]
    assert again[1] == told[0]
    books.balance_out()


def test_the_settings_say_whether_balances_are_told() -> None:
    for events in (False, True):
        made: Any = wallet_of(settings_class().model_validate({"wallet": {"events": events}}))
        assert made.handlers["wallet.cancel"].keywords == {"events": events}


def test_each_wallet_refuses_the_mode_of_the_other() -> None:
    """The orchestrator of one mode waits for messages that the other wallet does not send."""
    literal_mode = settings_class().model_validate({"payments": {"mode": "literal"}})
    with pytest.raises(Misconfigured, match=r"payments\.mode.*run `wallet-literal`"):
        wallet_of(literal_mode)
    with pytest.raises(Misconfigured, match=r"payments\.mode.*run `wallet`"):
        literal_wallet.wallet(settings_class()())


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("internal_url", "ftp://a"), ("internal_url", "http://"), ("internal_url", "http://[bad"),
        ("internal_url", "http://a..b"), ("internal_url", "http://a:99999"), ("internal_token", "two\nlines"),
        ("internal_token", "two words"), ("internal_token", "tök"),
    ],
)  # fmt: skip
def test_the_literal_wallet_refuses_an_unusable_address_or_token(setting: str, wrong: str) -> None:
    good = {"mode": "literal", "internal_url": "http://payments:8080", "internal_token": "s3cret$"}
    assert literal_wallet.wallet(settings_class().model_validate({"payments": good})).mode == "at_most_once"
    with pytest.raises(Misconfigured, match=rf"payments\.{setting}") as refused:
        literal_wallet.wallet(settings_class().model_validate({"payments": {**good, setting: wrong}}))
    assert setting == "internal_url" or wrong not in str(refused.value)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"amount": 901}, "INSUFFICIENT_FUNDS"),
        ({"amount": 0}, "INVALID_AMOUNT"),
        ({"amount": -1}, "INVALID_AMOUNT"),
        ({"currency": "USD"}, "WRONG_CURRENCY"),
    ],
)
def test_a_refused_deduction_has_a_reason_and_moves_nothing(books: Books, what: dict[str, Any], reason: str) -> None:
    of = books.open(900)
    [answer] = books.handle(asked("DEDUCT", of, uuid4(), **what))
    assert short(answer) == ("DEDUCT", reason, None, None)
    assert books.balance(of) == 900
    books.balance_out()


def test_a_wallet_that_does_not_exist_is_the_reason_of_the_failure(books: Books) -> None:
    assert short(books.handle(asked("DEDUCT", uuid4(), uuid4()))[0])[1] == "NO_WALLET"


def test_a_cancellation_prevents_the_deduction_of_a_wallet_opened_later(books: Books) -> None:
    """N5: the cancellation is refused, and its step never takes anything."""
    of, request = uuid4(), uuid4()
    [cancelled] = books.handle(asked("CANCEL", of, request))
    books.db.execute("SELECT wallet.open(%s, 'EUR', 900)", (of,))
    [late] = books.handle(asked("DEDUCT", of, request))
    assert [short(each)[:2] for each in (cancelled, late)] == [("CANCEL", "NO_WALLET"), ("DEDUCT", "CANCELLED")]
    assert books.balance(of) == 900


def test_every_attempt_of_an_operation_is_answered_with_its_outcome(books: Books) -> None:
    """N5: the answer has the balance of that time, not the present one."""
    of, request = books.open(900), uuid4()
    books.handle(asked("DEDUCT", of, request, amount=500))
    books.handle(asked("DEDUCT", of, uuid4(), amount=100))
    again = books.handle(
        asked("DEDUCT", of, request, amount=500, attempt=2), asked("DEDUCT", of, request, amount=7, attempt=3)
    )
    assert [short(each) for each in again] == [("DEDUCT", "SUCCEEDED", 500, 400)] * 2
    assert [each["attempt"] for each in again] == [2, 3]
    assert books.balance(of) == 300


def test_a_refused_deduction_stays_refused_although_the_balance_has_grown(books: Books) -> None:
    of, request, other = books.open(100), uuid4(), uuid4()
    books.handle(asked("DEDUCT", of, other, amount=100))
    books.handle(asked("DEDUCT", of, request, amount=100))
    books.handle(asked("CANCEL", of, other))
    [answer] = books.handle(asked("DEDUCT", of, request, amount=100, attempt=2))
    assert short(answer)[1] == "INSUFFICIENT_FUNDS"
    assert books.balance(of) == 100


@pytest.mark.parametrize("first", ["CANCEL", "REFUND"])
@pytest.mark.parametrize("together", [True, False])
def test_a_refund_or_cancellation_prevents_a_later_deduction(books: Books, first: str, together: bool) -> None:
    of, request = books.open(900), uuid4()
    messages = [asked(first, of, request), asked("DEDUCT", of, request)]
    answers = books.handle(*messages) if together else [*books.handle(messages[0]), *books.handle(messages[1])]
    assert [short(each) for each in answers] == [
        (first, "SUCCEEDED", 0, 900),
        ("DEDUCT", "CANCELLED", None, None),
    ]
    assert books.balance(of) == 900
    books.balance_out()


def test_a_cancellation_gives_back_what_was_taken_once(books: Books) -> None:
    of, request = books.open(900), uuid4()
    answers = books.handle(
        asked("DEDUCT", of, request, amount=500), asked("CANCEL", of, request), asked("CANCEL", of, request, attempt=2)
    )
    assert [short(each) for each in answers] == [
        ("DEDUCT", "SUCCEEDED", 500, 400),
        ("CANCEL", "SUCCEEDED", 500, 900),
        ("CANCEL", "SUCCEEDED", 500, 900),
    ]
    assert books.balance(of) == 900


@pytest.mark.parametrize("kind", ["CANCEL", "REFUND"])
def test_an_opening_balance_is_not_mistaken_for_a_refund(books: Books, kind: Kind) -> None:
    """N5: the opening entry has the wallet's id in place of a payment's, which anyone could send."""
    of = books.open(900)
    [answer] = books.handle(asked(kind, of, of, amount=100, step="open"))
    assert short(answer) == (kind, "SUCCEEDED", 0, 900)
    assert books.balance(of) == 900
    books.balance_out()


def test_a_refund_and_a_cancellation_together_give_back_no_more_than_was_taken(books: Books) -> None:
    of, request = books.open(900), uuid4()
    answers = books.handle(
        asked("DEDUCT", of, request, amount=500), asked("REFUND", of, request, amount=200),
        asked("CANCEL", of, request), asked("REFUND", of, request, amount=500, attempt=2),
    )  # fmt: skip
    assert [short(each) for each in answers] == [
        ("DEDUCT", "SUCCEEDED", 500, 400),
        ("REFUND", "SUCCEEDED", 200, 600),
        ("CANCEL", "SUCCEEDED", 300, 900),
        ("REFUND", "SUCCEEDED", 200, 600),
    ]
    books.balance_out()


def test_a_refund_of_more_than_was_taken_is_refused(books: Books) -> None:
    of, request = books.open(900), uuid4()
    answers = books.handle(asked("DEDUCT", of, request, amount=500), asked("REFUND", of, request, amount=501))
    assert short(answers[1])[1] == "INVALID_AMOUNT"
    assert books.balance(of) == 400


@pytest.mark.parametrize("kind", ["CANCEL", "REFUND"])
def test_giving_back_a_failed_deduction_answers_with_amount_zero(books: Books, kind: str) -> None:
    of, request = books.open(10), uuid4()
    answers = books.handle(asked("DEDUCT", of, request), asked(kind, of, request))
    assert short(answers[1]) == (kind, "SUCCEEDED", 0, 10)
    assert books.one("SELECT count(*) FROM wallet.entries WHERE request_id = %s", request) == 0


@pytest.mark.parametrize("kind", ["CANCEL", "REFUND"])
def test_an_amount_is_given_back_to_its_own_wallet_only(books: Books, kind: str) -> None:
    of, other, request = books.open(900), books.open(900), uuid4()
    answers = books.handle(asked("DEDUCT", of, request), asked(kind, other, request))
    assert short(answers[1])[1] == "NO_WALLET"
    assert books.balances() == {of: 800, other: 900}


def test_a_thousand_deductions_are_taken_in_order_until_the_wallet_is_empty(books: Books) -> None:
    of = books.open(600)
    answers = books.handle(*(asked("DEDUCT", of, uuid4(), amount=1) for _ in range(1000)))
    assert [short(each) for each in answers[:600]] == [("DEDUCT", "SUCCEEDED", 1, 599 - n) for n in range(600)]
    assert {short(each)[1] for each in answers[600:]} == {"INSUFFICIENT_FUNDS"}
    assert books.balance(of) == 0
    books.balance_out()


def test_a_batch_is_one_commit_and_eight_statements_at_most(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    of = [books.open(900) for _ in range(20)]
    said: list[Any] = []
    execute = psycopg.Cursor.execute

    def counted(*arguments: Any, **named: Any) -> Any:
        said.append(arguments[1])
        return execute(*arguments, **named)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    transact(books.db, [asked("DEDUCT", each, uuid4()) for each in of])
    assert len(said) + 2 <= 8, said  # and BEGIN and COMMIT


# --- the model

NOTHING: tuple[Any, ...] = (None, None, None, None)


@dataclass
class Model:
    """The rules in the simplest form, one command after the other on dicts: the reference for the test."""

    held: dict[UUID, int]
    currency: dict[UUID, str]
    outcomes: dict[tuple[UUID, str, str], tuple[Any, ...]] = field(default_factory=dict)
    taken_from: dict[tuple[UUID, str], UUID] = field(default_factory=dict)

    def ask(self, kind: str, data: dict[str, Any]) -> tuple[Any, ...]:
        """Decide a command; return (kind, SUCCEEDED or a reason, amount, balance)."""
        step = (data["request_id"], data["step"])
        if (*step, kind) not in self.outcomes:
            if kind != "DEDUCT" and (*step, "DEDUCT") not in self.outcomes:
                self.outcomes[*step, "DEDUCT"] = ("DEDUCT", "CANCELLED", None, None)
                self.taken_from[step] = data["wallet_id"]
            if kind == "DEDUCT":
                self.taken_from[step] = data["wallet_id"]
            self.outcomes[*step, kind] = self._outcome(kind, step, data)
        return self.outcomes[*step, kind]

    def _outcome(self, kind: str, step: tuple[UUID, str], data: dict[str, Any]) -> tuple[Any, ...]:
        of: UUID = data["wallet_id"]
        amount: int = data.get("amount", 0)
        reason = self._reason(kind, step, data)
        if reason:
            return kind, reason, None, None
        if kind == "DEDUCT":
            self.held[of] -= amount
            return kind, "SUCCEEDED", amount, self.held[of]
        taken: int = self.outcomes[*step, "DEDUCT"][2] or 0
        given = sum(self.outcomes.get((*step, each), NOTHING)[2] or 0 for each in ("REFUND", "CANCEL"))
        back = min(taken - given, amount if kind == "REFUND" else taken)
        self.held[of] += back
        return kind, "SUCCEEDED", back, self.held[of]

    def _reason(self, kind: str, step: tuple[UUID, str], data: dict[str, Any]) -> str | None:
        of, taken = data["wallet_id"], self.outcomes.get((*step, "DEDUCT"), NOTHING)[2]
        amount = data.get("amount", 1)
        faults = {
            "INVALID_AMOUNT": amount <= 0,
            "NO_WALLET": of not in self.held,
            "WRONG_CURRENCY": "currency" in data and data["currency"] != self.currency.get(of),
            "NO_WALLET ": self.taken_from[step] != of,
            "INVALID_AMOUNT ": kind == "REFUND" and taken is not None and amount > taken,
            "INSUFFICIENT_FUNDS": kind == "DEDUCT" and amount > self.held.get(of, 0),
        }
        return next((reason.strip() for reason, true in faults.items() if true), None)


COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(["DEDUCT", "DEDUCT", "REFUND", "CANCEL"]),
        st.sampled_from([0, 0, 0, 1, 2, 3]),  # a wallet; the last is not there
        st.integers(0, 3),  # a payment
        st.sampled_from(["deduct", "again"]),
        st.sampled_from([1, 30, 60, 100, 100, 200, 0, -5]),
        st.sampled_from(["EUR", "EUR", "EUR", "USD"]),
        st.one_of(st.none(), st.none(), st.integers(0, 40)),  # comes again: the same message as one before
        st.booleans(),  # the batch ends here
    ),
    max_size=40,
)


def examples(many: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=many, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture],
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )  # fmt: skip


@examples(40)
@given(commands=COMMANDS)
def test_any_commands_in_any_batches_have_the_outcomes_of_the_plain_rules(
    books: Books, commands: list[tuple[Any, ...]]
) -> None:
    """N3, N5, N6."""
    of = [books.open(250), books.open(0), books.open(100, "USD"), uuid4()]
    requests = [uuid4() for _ in range(4)]
    model = Model({of[0]: 250, of[1]: 0, of[2]: 100}, {of[0]: "EUR", of[1]: "EUR", of[2]: "USD"})
    sent, batch, said = list[Any](), list[Any](), dict[UUID, tuple[Any, ...]]()
    for kind, number, request, step, amount, currency, again, ends in [*commands, (*[None] * 6, None, True)]:
        if kind is not None:
            if again is not None and again < len(sent):
                message = sent[again]
            else:
                message = asked(kind, of[number], requests[request], amount=amount, currency=currency, step=step,
                                attempt=len(sent) + 1)  # fmt: skip
            sent.append(message)
            batch.append(message)
        if not ends:
            continue
        before = set(said)
        expected = list[Any]()
        for message in batch:
            if message.id not in said:
                said[message.id] = model.ask(message.type.removeprefix("wallet.").upper(), dict(message.data))
                expected.append((*said[message.id], message.data["attempt"]))
            elif message.id in before:  # it is told again, as it was; a second one in the same batch is not
                expected.append((*said[message.id], message.data["attempt"]))
        answers = books.handle(*batch)
        assert Counter((*short(each), each["attempt"]) for each in answers) == Counter(expected)
        batch = []
    assert {each: books.balance(each) for each in of[:3]} == model.held
    rows = books.db.execute(
        "SELECT request_id, step, kind, coalesce(reason, 'SUCCEEDED'), CASE WHEN reason IS NULL THEN abs(amount) END, "
        "balance FROM wallet.ledger "
        "WHERE request_id = ANY (%s)", (requests,),
    ).fetchall()  # fmt: skip
    assert {row[:3]: (row[2], *row[3:]) for row in rows} == model.outcomes
    books.balance_out()


@pytest.mark.prove
@examples(500)
@given(commands=COMMANDS)
def test_many_commands_have_the_outcomes_of_the_plain_rules(books: Books, commands: list[tuple[Any, ...]]) -> None:
    test_any_commands_in_any_batches_have_the_outcomes_of_the_plain_rules.hypothesis.inner_test(books, commands)  # type: ignore[attr-defined]


# --- together


def together(url: str, *work: Any) -> list[Any]:
    """Run calls at once, each in a thread and on a connection of its own; return results and errors."""
    ready, results = threading.Barrier(len(work)), list[Any]([None] * len(work))

    def run(number: int) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            ready.wait(10)
            try:
                results[number] = work[number](db)
            except Exception as error:
                results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def insistently(db: Database, messages: list[Any]) -> int:
    """Retry transient errors as the loop does, and return how often."""
    for tries in range(50):
        try:
            transact(db, messages)
        except Transient:
            continue
        return tries
    raise AssertionError("it never went through")


@pytest.mark.parametrize("there", [True, False], ids=["wallets", "no wallets"])
def test_two_owners_of_the_same_batch_have_its_effect_once(
    books: Books, ferryman_database_url: str, there: bool
) -> None:
    """N5: the locks of the wallets order them, or the key of the operations if there is no wallet."""
    of = [books.open(10_000) if there else uuid4() for _ in range(20)]
    for _ in range(5):
        batch = [asked("DEDUCT", of[n % 20], uuid4(), amount=1) for n in range(200)]
        results = together(ferryman_database_url, *[lambda db, batch=batch: insistently(db, batch)] * 2)
        assert all(isinstance(each, int) for each in results), results
    if there:
        assert set(books.balances().values()) == {10_000 - 50}
    assert books.one("SELECT count(*) FROM wallet.ledger WHERE kind = 'DEDUCT'") == 1000
    assert books.one("SELECT count(DISTINCT id) FROM ferryman.outbox") == 1000
    books.balance_out()


def test_the_same_operations_by_other_messages_in_another_order_happen_once(
    books: Books, ferryman_database_url: str
) -> None:
    of = [books.open(10_000) for _ in range(20)]
    requests = [uuid4() for _ in range(200)]
    batches = [
        [asked("DEDUCT", of[n % 20], request, amount=1, attempt=attempt) for n, request in enumerate(requests)][::turn]
        for attempt, turn in enumerate((1, -1, 1, -1), 1)
    ]
    results = together(ferryman_database_url, *[lambda db, b=each: insistently(db, b) for each in batches])
    assert all(isinstance(each, int) for each in results), results
    assert set(books.balances().values()) == {10_000 - 10}
    books.balance_out()


def test_batches_with_the_same_wallets_in_any_order_never_deadlock(books: Books, ferryman_database_url: str) -> None:
    of = [books.open(1_000_000) for _ in range(30)]

    def work(number: int, db: Database) -> int:
        """Run a batch; a deadlock is raised as a transient error."""
        for turn in range(25):
            wallets = of[turn % 7 :] + of[: turn % 7]
            batch = [asked("DEDUCT", each, uuid4(), amount=1) for each in wallets[:: -1 if number % 2 else 1]]
            transact(db, batch)
        return 25

    results = together(ferryman_database_url, *[lambda db, n=number: work(n, db) for number in range(4)])
    assert results == [25] * 4
    assert sum(books.balances().values()) == 30_000_000 - 4 * 25 * 30
    books.balance_out()


# --- what the database itself keeps


def test_the_wallets_role_can_book_but_not_change_the_ledger(books: Books) -> None:
    of = books.open(900)
    books.db.execute("SET ROLE ferryman_wallet")
    transact(books.db, [asked("DEDUCT", of, uuid4())])
    for forbidden in (
        "UPDATE wallet.ledger SET amount = 1",
        "DELETE FROM wallet.ledger",
        "UPDATE wallet.wallets SET currency = 'USD'",
        "DELETE FROM wallet.wallets",
        "TRUNCATE wallet.ledger",
        f"SELECT wallet.open('{uuid4()}', 'EUR', 1)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            books.db.execute(forbidden)
    books.db.execute("RESET ROLE")
    assert books.balance(of) == 800


@pytest.mark.parametrize(
    ("kind", "amount", "decided_at"),
    [
        ("OPEN", 5, "clock_timestamp()"),
        ("REFUND", 5, "clock_timestamp()"),
        ("DEDUCT", 901, "clock_timestamp()"),
        ("DEDUCT", 5, "clock_timestamp() + interval '1 s'"),
        ("DEDUCT", 5, "now() - interval '1 s'"),
    ],
)
def test_the_wallets_role_cannot_make_money_or_choose_a_time(
    books: Books, kind: str, amount: int, decided_at: str
) -> None:
    """N5: no step gives back more than it took, no balance is negative, and decisions are of now."""
    of = books.open(900)
    books.db.execute("SET ROLE ferryman_wallet")
    with pytest.raises(psycopg.errors.IntegrityError):
        books.db.execute(
            f"SELECT wallet.book({decided_at}, %s, '{{s}}', %s, %s, '{{NULL}}', %s, '{{EUR}}', '{{5}}')",
            ([uuid4()], [kind], [of], [amount]),
        )
    books.db.execute("RESET ROLE")
    assert books.balance(of) == 900


_BOOK = (
    "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, balance, currency, reason) "
    "VALUES (gen_random_uuid(), 's',"
)


@pytest.mark.parametrize(
    "forbidden",
    [
        "UPDATE wallet.ledger SET amount = 1",
        "DELETE FROM wallet.ledger",
        "TRUNCATE wallet.ledger",
        "UPDATE wallet.wallets SET currency = 'USD'",
        "DELETE FROM wallet.wallets",
        f"{_BOOK} 'DEDUCT', gen_random_uuid(), 5, 5, 'EUR', NULL)",
        f"{_BOOK} 'REFUND', gen_random_uuid(), -5, 5, 'EUR', NULL)",
        f"{_BOOK} 'DEDUCT', gen_random_uuid(), -5, NULL, NULL, 'NO_WALLET')",
        f"{_BOOK} 'DEDUCT', gen_random_uuid(), -5, -5, 'EUR', NULL)",
        "UPDATE wallet.wallets SET balance = -1",
    ],
)
def test_the_books_refuse_falsification_even_by_their_owner(books: Books, forbidden: str) -> None:
    books.open(900)
    with pytest.raises(psycopg.errors.IntegrityError):
        books.db.execute(forbidden)
    books.balance_out()


@pytest.mark.parametrize(("request_is_wallet", "step"), [(False, "open"), (True, "again"), (True, "open")])
def test_a_second_opening_is_refused_for_every_role(books: Books, request_is_wallet: bool, step: str) -> None:
    """N5: not even the owner of the books makes money."""
    of = books.open(900)
    with pytest.raises(psycopg.errors.IntegrityError):
        books.db.execute(
            "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, balance, currency) "
            "VALUES (%s, %s, 'OPEN', %s, 5, 905, 'EUR')", (of if request_is_wallet else uuid4(), step, of),
        )  # fmt: skip


def test_a_wallet_is_opened_once_and_the_ledger_tells_where_its_money_came_from(books: Books) -> None:
    of, empty = books.open(900), books.open(0)
    with pytest.raises(psycopg.errors.UniqueViolation):
        books.db.execute("SELECT wallet.open(%s, 'EUR', 1)", (of,))
    entries = "SELECT account, amount FROM wallet.entries WHERE wallet_id = %s ORDER BY account"
    assert books.db.execute(entries, (of,)).fetchall() == [("opening", -900), ("wallet", 900)]
    assert books.db.execute(entries, (empty,)).fetchall() == []
    books.balance_out()
