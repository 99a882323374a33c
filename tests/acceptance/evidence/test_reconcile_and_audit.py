"""`ferryman reconcile payments` and `ferryman audit`, as a person and a script run them."""

import json
from pathlib import Path
from typing import Any

import pytest

from ferryman.services.payments.payments_settings import PaymentsSettings
from support.launch import Launcher
from support.paying import failed
from support.town import Town, damage


class Commands:
    """Runs them where the town is."""

    def __init__(self, ferryman: Launcher, town: Town) -> None:
        ours, theirs = town.settings.database_url, town.settings.section(PaymentsSettings).wallet_database_url
        assert ours is not None
        assert theirs is not None
        self._ferryman = ferryman
        self.environment = {
            "FERRYMAN_DATABASE_URL": ours.get_secret_value(),
            "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL": theirs.get_secret_value(),
        }

    def __call__(self, *arguments: str, code: int) -> str:
        ran = self._ferryman.run(*arguments, env=self.environment)
        assert ran.wait() == code, ran.transcript()
        self.said = ran.stderr
        return ran.stdout

    def json(self, *arguments: str, code: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(*arguments, "--json", code=code))
        return found


@pytest.fixture
def run(ferryman: Launcher, town: Town) -> Commands:
    return Commands(ferryman, town)


def test_pending_payments_are_mended_once_and_exit_codes_tell_what_is_left(run: Commands, town: Town) -> None:
    assert "no payment is pending" in run("reconcile", "payments", code=0)
    lost, stuck = town.asks(), town.asks()
    town.published(town.desk.db)
    town.ages(lost)
    said = run("reconcile", "payments", code=1)
    assert "not_consumed" in said
    assert f"ferryman reconcile payments --id {lost.uuid} --yes --reason 'asked again'" in said
    assert "nothing was changed: --yes and --reason would mend 1" in said
    assert f'"uuid": "{lost.uuid}"' in run.said
    assert "cause" in run.said
    assert "--reason is missing" in str(run("reconcile", "payments", "--yes", code=2) or run.said)
    mended = run.json("reconcile", "payments", "--yes", "--reason", "the wallet is back", code=0)
    assert (mended["repaired"], mended["counts"]) == ({"republish": 1}, {"not_consumed": 1})
    again = run.json("reconcile", "payments", "--yes", "--reason", "the wallet is back", code=0)
    assert (again["repaired"], again["repairs"]) == ({}, {})
    town.desk.late(stuck)
    town.desk.apply(failed(stuck, "UNKNOWN", "CANCEL"))
    [case] = run.json("reconcile", "payments", "--id", str(stuck.uuid), code=5)["cases"]
    assert (case["cause"], case["repair"]) == ("needs_person", "none")
    settle = ("reconcile", "payments", "--settle", str(stuck.uuid))
    assert "would make" in run(*settle, code=0)
    assert run.json(*settle, "--yes", "--reason", "TX 4711", code=0)["state"] == "FAILED"
    assert "only what is STUCK" in run.json(*settle, "--yes", "--reason", "TX 4711", code=1)["error"]["message"]
    assert town.desk.stands(stuck)[0] == "FAILED"


def test_no_amount_and_no_reference_stands_in_the_log(run: Commands, town: Town) -> None:
    """N14."""
    payment = town.asks(amount=77_123, balance=99_999, reference="Invoice of Ann")
    town.published(town.desk.db)
    town.ages(payment)
    run("reconcile", "payments", code=1)
    assert str(payment.uuid) in run.said
    assert "77123" not in run.said
    assert "Invoice" not in run.said


def test_an_audit_says_ok_and_then_what_is_wrong_and_what_to_do(run: Commands, town: Town) -> None:
    payment = town.asks()
    town.consume(payment)
    town.answer(payment)
    with damage(town.desk.db):
        town.desk.db.execute("UPDATE payments.requests SET created_at = created_at - interval '1 min'")
    assert "verdict: ok" in run("audit", code=0)
    found = run.json("audit", "--since", "1h", code=0)
    assert (found["verdict"], found["counts"]["requests"]) == ("ok", {"SUCCEEDED": 1})
    assert run.json("audit", "--until", "1h", code=0)["counts"].get("requests") is None
    with damage(town.books.db):
        town.books.db.execute("DELETE FROM wallet.ledger WHERE request_id = %s", (payment.uuid,))
    found = run.json("audit", code=1)
    assert found["verdict"] == "wrong"
    assert ("success_without_deduction", str(payment.uuid)) in [(each["what"], each["id"]) for each in found["wrong"]]
    said = run("audit", code=1)
    assert f"ferryman trace {payment.uuid}" in said
    assert "verdict: wrong" in said


@pytest.mark.parametrize(
    ("limits", "code", "setting"),
    [
        ({"STATEMENT_TIMEOUT_SECONDS": "0.3"}, 3, "database.statement_timeout_seconds"),
        ({"LOCK_TIMEOUT_SECONDS": "0.3"}, 5, None),
    ],
)
def test_unfinished_audit_says_why_and_exits_with_its_own_code(
    run: Commands, town: Town, limits: dict[str, str], code: int, setting: str | None
) -> None:
    """The wallets come last, and somebody has locked them."""
    payment = town.asks()
    town.consume(payment)
    town.answer(payment)
    with damage(town.desk.db), damage(town.books.db):
        town.desk.db.execute("UPDATE payments.requests SET created_at = created_at - interval '1 min'")
        town.books.db.execute("DELETE FROM wallet.ledger WHERE request_id = %s", (payment.uuid,))
    run.environment |= {f"FERRYMAN_DATABASE__{name}": value for name, value in limits.items()}
    with town.books.db.transaction():
        town.books.db.execute("LOCK TABLE wallet.wallets")
        error = run.json("audit", code=code)["error"]
    assert (error["setting"], error["exit_code"]) == (setting, code)
    assert "the audit did not finish" in error["message"]
    assert error["remedy"]
    assert f"success_without_deduction: {payment.uuid}" in run.said


def test_unnamed_wallet_database_is_asked_for(run: Commands) -> None:
    del run.environment["FERRYMAN_PAYMENTS__WALLET_DATABASE_URL"]
    for command in (("audit",), ("reconcile", "payments")):
        run(*command, code=3)
        assert "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL" in run.said


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("", 3, "no database is named"),
        ("http://w", 3, "cannot be read"),
        ("host=127.0.0.1 port=1", 4, "start PostgreSQL"),
    ],
)
def test_unusable_wallet_database_is_named_by_its_own_setting(run: Commands, url: str, code: int, said: str) -> None:
    run.environment["FERRYMAN_PAYMENTS__WALLET_DATABASE_URL"] = url
    for command in (("audit",), ("reconcile", "payments")):
        run(*command, code=code)
        assert said in run.said
        assert "[setting payments.wallet_database_url, or FERRYMAN_PAYMENTS__WALLET_DATABASE_URL]" in run.said


def test_command_names_the_wallets_variable_only_if_it_holds_the_url(run: Commands, town: Town, tmp_path: Path) -> None:
    """Elsewhere the shell would find it empty, and the command would name no database."""
    payment = town.asks()
    town.published(town.desk.db)
    town.consume(payment)
    town.ages(payment)
    variable = "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL"
    [case] = run.json("reconcile", "payments", code=5)["cases"]
    assert case["next"] == f'FERRYMAN_DATABASE_URL="${variable}" ferryman run relay'
    (secret := tmp_path / "url").write_text(run.environment.pop(variable))
    run.environment[f"{variable}_FILE"] = str(secret)
    [case] = run.json("reconcile", "payments", code=5)["cases"]
    assert case["next"] == "FERRYMAN_DATABASE_URL=<the wallet's URL> ferryman run relay"
    run.environment["FERRYMAN_RELAY__SOURCES__BOOKS__DATABASE_URL"] = secret.read_text()
    [case] = run.json("reconcile", "payments", code=5)["cases"]
    assert case["next"] == "ferryman run relay"
