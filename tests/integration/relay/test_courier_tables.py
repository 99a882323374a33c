"""Tables with unusual columns and values: a bad row costs no other, and a table that cannot work is refused."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from standardwebhooks.webhooks import Webhook
from structlog.testing import capture_logs

from ferryman import Courier, Post, Refused
from ferryman.channels.outcome import Code
from ferryman.cli.app import run
from ferryman.relay.described.couriers import courier, drain
from ferryman.relay.described.rows import Claimed
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.life import Life
from ferryman.testing.receiver import Answer, Receiver
from support.describing import Memos
from support.hooks import SECRET, HookTable
from support.published import poll_until
from support.topics import create

Database = psycopg.Connection[tuple[Any, ...]]
UNREADABLE = {"digits": "repeat('1', 5000)::jsonb", "nested": "(repeat('[', 3000) || repeat(']', 3000))::jsonb"}


@pytest.fixture
def hooks(ferryman_database_url: str, ferryman_db: Database) -> HookTable:
    return HookTable(ferryman_database_url, ferryman_db)


def refused(hooks: HookTable) -> str:
    """Expect that a start refuses the table. Apply the DDL that it prints, and return it."""
    with pytest.raises(Misconfigured) as caught, hooks.courier():
        pass
    assert caught.value.remedy
    ddl = caught.value.remedy.partition(": ")[2]
    hooks.db.execute(ddl.encode())
    return ddl


def told(hooks: HookTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe the outbox to commands in this process."""
    monkeypatch.setenv("FERRYMAN_DATABASE_URL", hooks.url)
    monkeypatch.setenv("FERRYMAN_OUTBOX", json.dumps({"hooks": hooks.description}))


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_row_with_unreadable_headers_is_rejected_alone(hooks: HookTable, receiver: Receiver, value: str) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ADD COLUMN headers jsonb")
    bad, _ = hooks.write(receiver.url, receiver.url)
    hooks.db.execute(f"UPDATE shop.hooks SET headers = jsonb_build_object('x', {value}) WHERE id = %s", (bad,))
    with hooks.courier() as turns:
        assert turns.until_quiet() == 1
    assert [status for status, *_ in hooks.rows()] == ["DEAD", "SENT"]
    assert sorted(hooks.attempts()) == [("delivered", None), ("rejected", Code.HEADER_INVALID)]


def test_row_with_unreadable_headers_can_be_given_up(hooks: HookTable, receiver: Receiver) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ADD COLUMN headers jsonb")
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        hooks.db.execute(f"UPDATE shop.hooks SET headers = jsonb_build_object('x', {UNREADABLE['digits']}), "
                         "status = 'SENDING', attempts = 3, claimed_at = now() - interval '1 h'")  # fmt: skip
        [row] = turns.table.bury(lambda _: None)
    assert (row.headers, row.flaw) == (None, None)
    assert [status for status, *_ in hooks.rows()] == ["DEAD"]


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_memo_with_unreadable_headers_fails_alone(
    ferryman_database_url: str, ferryman_db: Database, ferryman_kafka: str, value: str
) -> None:
    memos = Memos(ferryman_database_url, ferryman_kafka, ferryman_db, create(ferryman_kafka))
    ferryman_db.execute("ALTER TABLE shop.memos ADD COLUMN headers jsonb")
    bad, _ = memos.write("a", "b")
    ferryman_db.execute(f"UPDATE shop.memos SET headers = jsonb_build_object('x', {value}) WHERE id = %s", (bad,))
    with memos.relay() as relay:
        turn = relay.run_once()
    assert (turn.published, turn.failed) == (1, 1)
    assert [status for status, *_ in memos.rows()] == ["FAILED", "SENT"]


def test_error_that_cannot_be_null_is_refused(hooks: HookTable, receiver: Receiver) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ALTER error SET DEFAULT '', ALTER error SET NOT NULL")
    hooks.write(receiver.url)
    assert refused(hooks) == "ALTER TABLE shop.hooks ALTER COLUMN error DROP NOT NULL;"
    with hooks.courier() as turns:
        assert turns.until_quiet() == 1
    assert hooks.rows() == [("SENT", 0, None)]


def test_destination_that_may_be_null_is_refused(hooks: HookTable, receiver: Receiver) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ALTER destination DROP NOT NULL")
    assert refused(hooks) == "ALTER TABLE shop.hooks ALTER COLUMN destination SET NOT NULL;"
    own = Courier("hooks", outbox="hooks")

    @own.prepare
    def posts(_: Any, rows: Sequence[Claimed]) -> list[Post | Refused]:
        return [Post(row.destination, row.content) if row.destination else Refused("NO_ENDPOINT") for row in rows]

    hooks.write("", receiver.url)
    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 1
    assert [status for status, *_ in hooks.rows()] == ["DEAD", "SENT"]


@pytest.mark.parametrize(("kind", "most"), [("smallint", 2**15 - 1), ("integer", 2**31 - 1), ("bigint", 2**63 - 1)])
def test_row_with_the_most_attempts_stops_no_claim(hooks: HookTable, receiver: Receiver, kind: str, most: int) -> None:
    hooks.described |= {"retry": {"limit": 0, "base_seconds": 0.05}}
    hooks.db.execute(f"ALTER TABLE shop.hooks ALTER attempts TYPE {kind}")
    worn, lost, _ = hooks.write(receiver.url, receiver.url, receiver.url)
    hooks.db.execute("UPDATE shop.hooks SET attempts = %s WHERE id = ANY (%s)", (most, [worn, lost]))
    hooks.db.execute("UPDATE shop.hooks SET status = 'SENDING' WHERE id = %s", (lost,))
    with hooks.courier() as turns:
        claimed = [*turns.table.claim_lost(1), *turns.table.claim(2)]
        assert sorted(row.attempts for row in claimed) == [1, most, most]


@pytest.mark.parametrize("fair", [True, False], ids=["fair", "lost"])
def test_pause_of_an_impossible_destination_stops_no_claim(hooks: HookTable, *, fair: bool) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ADD COLUMN endpoint bigint NOT NULL DEFAULT 1")
    hooks.described |= {"columns": {"destination": "endpoint"}, "channel": "support.hooks:Letters", "secrets": []}
    hooks.write("one", "two")
    hooks.db.execute("UPDATE shop.hooks SET endpoint = 7 WHERE destination = 'two'")
    hooks.db.execute("INSERT INTO ferryman.described_paused (outbox, destination, who, reason) "
                     "VALUES ('hooks', 'acme', 'me', 'x'), ('hooks', '7', 'me', 'x')")  # fmt: skip
    if not fair:
        hooks.db.execute("UPDATE shop.hooks SET status = 'SENDING'")
    with hooks.courier() as turns:
        turns.until_quiet()
    assert [status for status, *_ in hooks.rows()] == ["SENT", "PENDING" if fair else "SENDING"]


@pytest.mark.parametrize(("given", "code"), [("acme", 1), ("007", 1), ("7", 0)])
def test_pause_refuses_a_destination_that_no_row_can_have(
    hooks: HookTable, monkeypatch: pytest.MonkeyPatch, given: str, code: int
) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ADD COLUMN endpoint bigint NOT NULL DEFAULT 1")
    hooks.described |= {"columns": {"destination": "endpoint"}, "channel": "support.hooks:Letters", "secrets": []}
    told(hooks, monkeypatch)
    assert run(["pause", "--outbox", "hooks", "--destination", given, "--reason", "x"]) == code
    assert hooks.db.execute("SELECT count(*) FROM ferryman.described_paused").fetchone() == (1 - code,)
    assert run(["resume", "--outbox", "hooks", "--destination", given]) == 0


@pytest.mark.parametrize("zone", ["with", "without"])
def test_lease_in_whole_seconds_is_refused(hooks: HookTable, receiver: Receiver, zone: str) -> None:
    hooks.db.execute(f"ALTER TABLE shop.hooks ALTER claimed_at TYPE timestamp(0) {zone} time zone")
    assert refused(hooks) == f"ALTER TABLE shop.hooks ALTER COLUMN claimed_at TYPE timestamp {zone} time zone;"
    hooks.described |= {"retry": {"limit": 9, "base_seconds": 0.05, "cap_seconds": 0.05}}
    receiver.answer = lambda _: Answer(500 if len(receiver.requests) < 4 else 200)
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        poll_until(lambda: turns.run_once().published, "the delivery")
    assert len(hooks.attempts()) == len(receiver.requests) == 4


def test_row_with_a_lease_in_the_future_can_be_discarded_and_replayed(
    hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told(hooks, monkeypatch)
    row = str(hooks.write(receiver.url)[0])
    hooks.db.execute("UPDATE shop.hooks SET status = 'SENDING', attempts = 1, claimed_at = now() + interval '1 year'")
    assert run(["outbox", "show", "--outbox", "hooks", row, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["next"]) == ("lost", f"ferryman outbox discard --outbox hooks {row}")
    for verb in ("discard", "replay"):
        assert run(["outbox", verb, "--outbox", "hooks", row, "--yes", "--reason", "x"]) == 0
    with hooks.courier() as turns:
        assert turns.until_quiet() == 1
    assert hooks.rows() == [("SENT", 0, None)]


def test_row_being_sent_is_not_lost(hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    told(hooks, monkeypatch)
    row = str(hooks.write(receiver.url)[0])
    hooks.db.execute("UPDATE shop.hooks SET status = 'SENDING', attempts = 1, claimed_at = now()")
    assert run(["outbox", "discard", "--outbox", "hooks", row, "--yes", "--reason", "x"]) != 0
    assert hooks.rows()[0][0] == "SENDING"


def test_infinite_times_are_shown(
    hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told(hooks, monkeypatch)
    row = str(hooks.write(receiver.url)[0])
    hooks.db.execute("UPDATE shop.hooks SET next_attempt_at = 'infinity', created_at = '-infinity'")
    for command in (["list"], ["show", row]):
        for form in ([], ["--json"]):
            assert run(["outbox", *command, "--outbox", "hooks", *form]) == 0
            words = capsys.readouterr().out.replace('"', " ").split()
            assert {"infinity", "-infinity"} <= set(words)


def test_table_that_does_not_fit_is_told_once_by_the_service(hooks: HookTable) -> None:
    """The housekeeping, which retries for ever, does not speak before it or beside it."""
    hooks.db.execute("ALTER TABLE shop.hooks DROP COLUMN error")
    service = courier("hooks", hooks.settings)
    with capture_logs() as logs, pytest.raises(Misconfigured, match="error"):
        service.run(Life("hooks"))
    assert logs == []


def test_request_has_a_signature_and_a_token_if_both_are_set(hooks: HookTable, receiver: Receiver) -> None:
    hooks.described |= {"bearer": "the-token"}
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        assert turns.until_quiet() == 1
    [request] = receiver.requests
    assert request.headers["authorization"] == "Bearer the-token"
    assert Webhook(SECRET).verify(request.body, dict(request.headers))


def test_drain_says_that_the_table_refuses_and_what_shows_why(hooks: HookTable, receiver: Receiver) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ADD CONSTRAINT known CHECK (status IN ('PENDING', 'SENT'))")
    hooks.write(receiver.url)
    with pytest.raises(Transient, match="known") as refused:
        drain(courier("hooks", hooks.settings), threading.Event())
    assert refused.value.setting == "outbox.hooks.table"
    assert "ferryman outbox check" in (refused.value.remedy or "")


def test_stats_of_due_rows_without_the_time_of_their_writing(
    hooks: HookTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hooks.write("http://h/")
    hooks.db.execute("ALTER TABLE shop.hooks DROP COLUMN created_at")
    told(hooks, monkeypatch)
    assert run(["outbox", "stats", "--outbox", "hooks"]) == 0
    assert "1 row due\n" in capsys.readouterr().out
