"""Rows of a described table in the hands of an operator: the commands, on prepared states and a real courier."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import conninfo

from ferryman.cli.app import run
from ferryman.relay.admin import described_rows
from ferryman.relay.described.statements import IN_DOUBT
from ferryman.runtime.errors import Exit, Misconfigured
from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Answer, Receiver
from support.hooks import HookTable
from support.published import poll_until

Ask = Callable[..., Any]
BECAUSE = ("--yes", "--reason", "asked for")


@pytest.fixture
def ask(hooks: HookTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command with --json in this process, and return its answer."""

    def asked(line: str, *more: str, exit_code: int = 0, url: str = hooks.url) -> Any:
        monkeypatch.setenv("FERRYMAN_DATABASE_URL", url)
        monkeypatch.setenv("FERRYMAN_OUTBOX", json.dumps({"hooks": hooks.description}))
        capsys.readouterr()
        assert run([*line.split(), *more, "--json"]) == exit_code, capsys.readouterr()
        return json.loads(capsys.readouterr().out or "null")

    return asked


@pytest.fixture
def said(ask: Ask, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command as a person does, and return what it prints."""

    def printed(line: str, *more: str) -> str:
        names = {each["name"] for each in ask("config show")}  # it sets the environment
        assert "outbox.hooks.words.dead" in names
        assert run([*line.split(), *more]) == 0
        return capsys.readouterr().out

    return printed


def put(hooks: HookTable, identity: UUID, status: str, attempts: int = 0, error: str | None = None, **age: str) -> None:
    """Put a row into a state; `claimed` and `due` say how long from now."""
    hooks.db.execute(
        "UPDATE shop.hooks SET status = %s, attempts = %s, error = %s, claimed_at = now() + %s::interval, "
        "next_attempt_at = now() + coalesce(%s::interval, interval '0'), done_at = CASE %s WHEN 'SENT' THEN now() END "
        "WHERE id = %s",
        (status, attempts, error, age.get("claimed"), age.get("due"), status, identity),
    )


@pytest.fixture
def states(hooks: HookTable) -> dict[str, str]:
    """Write a row in each state, and return its id."""
    ids = dict(zip(described_rows.STATES, hooks.write(*["http://one/"] * 4, *["http://two/"] * 5), strict=True))
    put(hooks, ids["retrying"], "PENDING", 2, "503", due="1 h")
    put(hooks, ids["sending"], "SENDING", 1, "in doubt", claimed="-1 s")
    put(hooks, ids["lost"], "SENDING", 1, "in doubt", claimed="-1 h")
    put(hooks, ids["failed"], "DEAD", 3, "503", claimed="-1 h")
    put(hooks, ids["held"], "DEAD", 1, "in doubt: perhaps", claimed="-1 h")
    put(hooks, ids["discarded"], "DEAD", 1, "discarded by hand: a test", claimed="-1 h")
    put(hooks, ids["delivered"], "SENT", 0, claimed="-1 h")
    put(hooks, ids["other"], "DRAFT")
    return {state: str(identity) for state, identity in ids.items()}


@pytest.mark.usefixtures("states")
def test_only_rows_that_wait_have_a_next_attempt(ask: Ask) -> None:
    waiting = {each["state"] for each in ask("outbox list --outbox hooks")["rows"] if each["next_attempt_at"]}
    assert waiting == {"pending", "retrying"}


def test_show_tells_every_attempt_and_replay_sends_a_failed_row_again(
    hooks: HookTable, receiver: Receiver, ask: Ask, said: Callable[..., str]
) -> None:
    receiver.answer = lambda _: Answer(500, body=b"out of order")
    [identity] = map(str, hooks.write(receiver.url))
    with hooks.courier() as courier:
        poll_until(lambda: courier.run_once() is not None and hooks.rows()[0][0] == "DEAD", "the end of its attempts")
    shown = ask("outbox show --outbox hooks", identity)
    assert (shown["status"], shown["state"], shown["attempts"]) == ("DEAD", "failed", 3)
    assert [(each["outcome"], each["code"]) for each in shown["history"]] == [("failed", "SERVER_FAILED")] * 3
    assert {each["excerpt"] for each in shown["history"]} == {"out of order"}
    assert {each["content"] for each in shown["history"]} == {sha256(b'{"n": 0}').hexdigest()[:16]}
    assert "3 attempts" in shown["reason"]
    assert "SERVER_FAILED" in shown["reason"]
    assert shown["next"] == f"ferryman outbox replay --outbox hooks {identity}"
    assert "payload" not in shown
    assert said("outbox show --outbox hooks", identity).count("SERVER_FAILED") == 4

    planned = ask("outbox replay --outbox hooks", identity)
    assert (planned["dry_run"], planned["by_state"]) == (True, {"failed": 1})
    assert hooks.rows()[0][0] == "DEAD"
    assert ask("outbox replay --outbox hooks", identity, *BECAUSE)["rows"] == 1
    assert hooks.rows() == [("PENDING", 0, None)]
    receiver.answer = lambda _: Answer(200)
    with hooks.courier() as courier:
        assert courier.until_quiet() == 1
    shown = ask("outbox show --outbox hooks", identity, "--payload")
    assert (shown["state"], shown["next"], shown["payload"]) == ("delivered", None, '{"n": 0}')
    assert [each["outcome"] for each in shown["history"]] == ["failed"] * 3 + ["delivered"]
    assert [(act["act"], act["reason"]) for act in shown["audit"]] == [("replay", "asked for")]


def test_list_has_every_state_and_pages_by_status_and_destination(states: dict[str, str], ask: Ask) -> None:
    found = ask("outbox list --outbox hooks")
    assert {each["id"]: each["state"] for each in found["rows"]} == {
        identity: state for state, identity in states.items()
    }
    assert [each["state"] for each in found["rows"]] == list(states)
    first = ask("outbox list --outbox hooks --destination http://one/ --limit 3")
    assert first["next"] == states["sending"]
    rest = ask("outbox list --outbox hooks --destination http://one/ --limit 3 --after", first["next"])
    assert ([each["state"] for each in rest["rows"]], rest["next"]) == (["lost"], None)
    assert len(ask("outbox list --outbox hooks --status dead --status sent")["rows"]) == 4
    assert ask("outbox list --outbox hooks --older-than 1h")["rows"] == []
    ask("outbox list --outbox hooks --status PUBLISHED", exit_code=Exit.USAGE)
    ask("outbox list --outbox hooks --topic orders", exit_code=Exit.USAGE)
    ask("outbox list --outbox hooks --key 17", exit_code=Exit.USAGE)
    for line in ("outbox list --destination http://one/", "outbox list --status dead", "outbox list --after abc"):
        ask(line, exit_code=Exit.USAGE)
    ask("outbox show --since 2h --outbox hooks", states["failed"], exit_code=Exit.USAGE)
    ask("outbox list --outbox", "", exit_code=Exit.USAGE)
    ask("outbox list --outbox hooks --after", str(uuid4()), exit_code=Exit.FAILURE)
    ask("outbox show --outbox hooks 4711", exit_code=Exit.FAILURE)


@pytest.mark.usefixtures("states")
def test_stats_count_what_is_not_delivered_and_say_that_nobody_delivers(ask: Ask, said: Callable[..., str]) -> None:
    found = ask("outbox stats --outbox hooks")
    assert {name: found[name] for name in ("pending", "retrying", "sending", "lost", "failed", "due", "couriers")} == {
        "pending": 1, "retrying": 1, "sending": 1, "lost": 1, "failed": 1, "due": 1, "couriers": 0,
    }  # fmt: skip
    assert [(each["destination"], each["pending"], each["failed"]) for each in found["destinations"]] == [
        ("http://one/", 1, 0), ("http://two/", 0, 1),
    ]  # fmt: skip
    assert 0 <= found["oldest_due_age_seconds"] < 600
    assert 0 <= found["oldest_age_seconds"] < 600
    assert "ferryman run hooks" in said("outbox stats --outbox hooks")


def test_replay_takes_failed_and_waiting_rows_and_leaves_all_others(
    hooks: HookTable, states: dict[str, str], ask: Ask
) -> None:
    done = ask("outbox replay --outbox hooks --status DEAD --status PENDING --status SENT --status SENDING", *BECAUSE)
    assert (done["rows"], sum(done["skipped"].values())) == (2, 6)
    due = "SELECT id::text FROM shop.hooks WHERE (status, attempts) = ('PENDING', 0) AND next_attempt_at <= now()"
    assert {row[0] for row in hooks.db.execute(due).fetchall()} == {
        states[n] for n in ("failed", "retrying", "pending")
    }
    assert ask("outbox replay --outbox hooks", states["discarded"].upper(), *BECAUSE)["rows"] == 1
    assert ask("outbox replay --outbox hooks", states["pending"], *BECAUSE)["rows"] == 0
    refused = ask("outbox replay --outbox hooks", states["delivered"], *BECAUSE, exit_code=Exit.FAILURE)
    assert "delivered" in refused["error"]["message"]
    ask("outbox replay --outbox hooks", str(uuid4()), *BECAUSE, exit_code=Exit.FAILURE)
    ask("outbox replay --outbox hooks --rate 5", states["failed"], *BECAUSE, exit_code=Exit.USAGE)
    ask("outbox replay --outbox hooks", exit_code=Exit.USAGE)


def test_replay_of_many_takes_each_once_in_chunks(hooks: HookTable, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_rows, "CHUNK", 2)
    hooks.write(*["http://one/"] * 5)
    hooks.db.execute("UPDATE shop.hooks SET status = 'DEAD', attempts = 3")
    assert ask("outbox replay --outbox hooks --destination http://one/", *BECAUSE)["rows"] == 5
    audited = hooks.db.execute("SELECT entries, filter FROM ferryman.outbox_audit ORDER BY id").fetchall()
    chosen = {"outbox": "hooks", "destination": "http://one/"}
    assert audited == [(2, chosen), (2, chosen), (1, chosen)]


@pytest.mark.parametrize(("act", "status"), [("replay", "DEAD"), ("discard", "PENDING")])
def test_act_by_hand_leaves_a_row_that_is_delivered_meanwhile(
    hooks: HookTable, ask: Ask, act: str, status: str
) -> None:
    """N7: the act waits for the lock of whoever settles the row, and looks at the row again."""
    [identity] = hooks.write("http://one/")
    put(hooks, identity, status)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with ThreadPoolExecutor() as threads:
        with psycopg.connect(hooks.url) as settling:
            settling.execute("UPDATE shop.hooks SET status = 'SENT'")
            acting = threads.submit(ask, f"outbox {act} --outbox hooks --status {status}", *BECAUSE)
            poll_until(lambda: hooks.db.execute(waits).fetchone() == (1,), "the lock")
        assert acting.result(20)["rows"] == 0
    assert hooks.rows()[0][0] == "SENT"


def test_discard_ends_rows_that_are_not_being_sent(hooks: HookTable, states: dict[str, str], ask: Ask) -> None:
    wanted = [states[state] for state in described_rows.DISCARDABLE]
    assert ask("outbox discard --outbox hooks", *wanted)["by_state"] == dict.fromkeys(described_rows.DISCARDABLE, 1)
    assert ask("outbox discard --outbox hooks", *wanted, *BECAUSE)["rows"] == 4
    discarded = hooks.db.execute("SELECT status, error FROM shop.hooks WHERE id::text = ANY (%s)", (wanted,)).fetchall()
    assert discarded == [("DEAD", "discarded by hand: asked for")] * 4
    for state in ("sending", "delivered"):
        ask("outbox discard --outbox hooks", states[state], *BECAUSE, exit_code=Exit.FAILURE)
    assert ask("outbox show --outbox hooks", states["failed"])["state"] == "discarded"


def test_discard_needs_a_word_for_rows_that_are_given_up(hooks: HookTable, ask: Ask) -> None:
    hooks.described["words"] = {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT"}
    [identity] = hooks.write("http://one/")
    refused = ask("outbox discard --outbox hooks", str(identity), *BECAUSE, exit_code=Exit.FAILURE)
    assert "outbox.hooks.words.dead" in refused["error"]["remedy"]


def test_one_row_is_told_as_one(hooks: HookTable, said: Callable[..., str]) -> None:
    [identity] = hooks.write("http://one/")
    assert "would discard 1 row (1 pending)" in said("outbox discard --outbox hooks", str(identity))
    assert said("outbox discard --outbox hooks", str(identity), *BECAUSE).startswith("1 row discarded")
    assert "no row is pending" in said("outbox stats --outbox hooks")
    assert said("outbox replay --outbox hooks", str(identity), *BECAUSE).startswith("1 row due now")


def test_without_words_for_claimed_and_dead_the_states_follow_from_error_and_attempts(
    hooks: HookTable, ask: Ask
) -> None:
    hooks.described["words"] = {"pending": ["PENDING"], "done": "SENT"}
    claimed, failed = hooks.write("http://one/", "http://two/")
    put(hooks, failed, "PENDING", 3, "503")
    with hooks.courier() as courier:
        assert len(courier.table.claim(10)) == 1
    listed = ask("outbox list --outbox hooks")["rows"]
    assert [(each["state"], each["error"]) for each in listed] == [("sending", None), ("failed", "503")]
    hooks.expire()
    lost = ask("outbox show --outbox hooks", str(claimed))
    assert (lost["state"], lost["error"]) == ("lost", IN_DOUBT)
    assert ask("outbox replay --outbox hooks", str(failed), *BECAUSE)["rows"] == 1
    assert hooks.rows()[1] == ("PENDING", 0, None)


def test_couriers_follow_a_pause_while_rows_under_way_end(
    hooks: HookTable, receiver: Receiver, ask: Ask, said: Callable[..., str]
) -> None:
    first, second, third = (str(each) for each in hooks.write(receiver.url, receiver.url, receiver.url + "/other"))
    hooks.db.execute("UPDATE shop.hooks SET next_attempt_at = now() + interval '1 h' WHERE id <> %s", (first,))
    with hooks.courier() as courier:
        let_go = threading.Event()
        receiver.answer = lambda _: Answer(200 if let_go.wait(20) else 500)
        courier.run_once()
        assert ask("pause --outbox hooks --reason moving")["changed"]
        assert not ask("pause --outbox hooks")["changed"]
        hooks.db.execute("UPDATE shop.hooks SET next_attempt_at = now()")
        courier.service.held.next_at = 0.0
        courier.run_once()
        let_go.set()
        assert courier.until_quiet() == 1
        assert [status for status, *_ in hooks.rows()] == ["SENT", "PENDING", "PENDING"]
        shown = ask("outbox show --outbox hooks", second)
        assert ("moving" in shown["reason"], shown["next"]) == (True, "ferryman resume --outbox hooks")
        assert "ferryman resume --outbox hooks" in said("outbox stats --outbox hooks")

        ask("pause --outbox hooks --destination", receiver.url, "--reason", "theirs is down")
        assert ask("resume --outbox hooks")["changed"]
        courier.service.held.next_at = 0.0
        assert courier.until_quiet() == 1
        assert [status for status, *_ in hooks.rows()] == ["SENT", "PENDING", "SENT"]
        shown = ask("outbox show --outbox hooks", second)
        assert shown["next"] == f"ferryman resume --outbox hooks --destination {receiver.url}"
        assert [act["act"] for act in shown["audit"]] == ["resume", "pause", "pause"]
        assert [act["act"] for act in ask("outbox show --outbox hooks", third)["audit"]] == ["resume", "pause"]

        assert ask("resume --outbox hooks --destination", receiver.url)["paused"] == []
        courier.service.held.next_at = 0.0
        assert courier.until_quiet() == 1


def test_a_pause_is_followed_and_ends(hooks: HookTable, receiver: Receiver, ask: Ask) -> None:
    with hooks.courier() as courier:
        ask("pause --outbox hooks --reason moving")
        poll_until(lambda: courier.run_once() is not None and courier.service.held.paused, "the pause")
        hooks.write(receiver.url)
        courier.run_once()
        assert receiver.requests == []
        ask("resume --outbox hooks")
        poll_until(lambda: courier.run_once() is not None and bool(receiver.requests), "delivery")


@pytest.mark.usefixtures("hooks")
def test_pause_refuses_names_that_could_mean_something_else(ask: Ask) -> None:
    for line in ("pause hooks", "pause", "pause orders --outbox hooks", "pause orders --destination x"):
        ask(line, exit_code=Exit.USAGE)
    ask("pause --outbox nothing", exit_code=Exit.CONFIGURATION)
    ask("pause --outbox hooks --destination", "", exit_code=Exit.USAGE)
    assert ask("pause hooks --topic")["paused"][0]["topic"] == "hooks"


def test_a_destination_cannot_be_paused_where_rows_name_none(hooks: HookTable, ask: Ask) -> None:
    hooks.described["url"] = "http://127.0.0.1:9/"
    hooks.db.execute("ALTER TABLE shop.hooks DROP COLUMN destination")
    ask("pause --outbox hooks --destination http://127.0.0.1:9/", exit_code=Exit.FAILURE)
    assert ask("pause --outbox hooks")["changed"]


def test_monitors_look_and_couriers_act(hooks: HookTable, states: dict[str, str], ask: Ask, login: Any) -> None:
    monitor, courier = login("ferryman_monitor"), login("ferryman_courier")
    hooks.db.execute("GRANT USAGE ON SCHEMA shop TO ferryman_monitor, ferryman_courier")
    hooks.db.execute("GRANT SELECT, UPDATE ON shop.hooks TO ferryman_courier")
    visible = "id, destination, status, attempts, error, claimed_at, next_attempt_at, created_at, done_at"
    hooks.db.execute(f"GRANT SELECT ({visible}) ON shop.hooks TO ferryman_monitor")
    assert len(ask("outbox list --outbox hooks", url=monitor)["rows"]) == 9
    assert ask("outbox stats --outbox hooks", url=monitor)["failed"] == 1
    assert ask("outbox show --outbox hooks", states["failed"], url=monitor)["state"] == "failed"
    for line in ("outbox show --payload --outbox hooks", "outbox replay --yes --reason r --outbox hooks"):
        refused = ask(line, states["failed"], url=monitor, exit_code=Exit.CONFIGURATION)
        assert "GRANT ferryman_courier" in refused["error"]["remedy"]
    ask("pause --outbox hooks", url=monitor, exit_code=Exit.CONFIGURATION)
    assert len(ask("outbox list --outbox hooks", url=courier)["rows"]) == 9
    assert ask("outbox stats --outbox hooks", url=courier)["failed"] == 1
    refused = ask("outbox show --outbox hooks", states["failed"], url=courier, exit_code=Exit.CONFIGURATION)
    assert "GRANT ferryman_monitor" in refused["error"]["remedy"]
    assert ask("outbox replay --outbox hooks", states["failed"], *BECAUSE, url=courier)["rows"] == 1
    assert ask("pause --outbox hooks", url=courier)["changed"]
    assert ask("resume --outbox hooks", url=courier)["changed"]
    [who] = hooks.db.execute("SELECT DISTINCT right(who, 15) FROM ferryman.outbox_audit").fetchall()
    assert str(conninfo.conninfo_to_dict(courier)["user"])[-10:] in who[0]
    with psycopg.connect(courier) as db, pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute("INSERT INTO ferryman.outbox_audit (who, act, reason) VALUES ('me', 'replay', 'the journal')")


def test_outbox_that_is_bound_to_a_role_is_delivered_and_paused_by_it_alone(
    hooks: HookTable, receiver: Receiver, ask: Ask, login: Any
) -> None:
    own, other = login(), login("ferryman_courier")
    role = conninfo.conninfo_to_dict(own)["user"]
    hooks.db.execute("SELECT ferryman.bind('outbox', 'hooks', %s::text::regrole)", (role,))
    hooks.db.execute(f"GRANT USAGE ON SCHEMA shop TO ferryman_courier, {role}")
    hooks.db.execute(f"GRANT SELECT, UPDATE ON shop.hooks TO ferryman_courier, {role}")
    [identity] = map(str, hooks.write(receiver.url))
    for line in ("pause", f"outbox discard {identity} --yes --reason r"):
        refused = ask(f"{line} --outbox hooks", url=other, exit_code=Exit.CONFIGURATION)
        assert f"GRANT {role} TO" in refused["error"]["remedy"]
    hooks.url = other
    with pytest.raises(Misconfigured, match=f"is bound to the role {role}"), hooks.courier():
        pass
    hooks.url = own
    with hooks.courier() as courier:
        assert courier.until_quiet() == 1
    for verb in ("pause", "resume"):
        assert ask(f"{verb} --outbox hooks", url=own)["changed"]
    assert hooks.attempts() == [("delivered", None)]


def test_a_courier_that_describes_its_table_itself_is_named_as_it_is_run(
    hooks: HookTable, states: dict[str, str], ask: Ask, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_rows.py").write_text(
        f"from ferryman import Courier\nown = Courier('own', outbox={hooks.description!r})\n"
    )
    monkeypatch.chdir(tmp_path)
    shown = ask("outbox show --outbox shop_of_rows:own", states["failed"])
    assert shown["next"] == f"ferryman outbox replay --outbox shop_of_rows:own {states['failed']}"
    ask("pause --outbox shop_of_rows:own")
    assert hooks.db.execute("SELECT outbox FROM ferryman.described_paused").fetchall() == [("own",)]


def test_the_dispatchers_role_is_enough_to_operate_its_outbox(
    ferryman_db: Connection, ask: Ask, login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERRYMAN_RUNNER__URL", "http://127.0.0.1:9/")
    [event] = ferryman_db.execute("SELECT runner.enqueue('t', 'k', '{}')::text").fetchall()[0]
    ferryman_db.execute("UPDATE runner.event_outbox SET status = 'FAILED', attempt_count = 3")
    runner, monitor = login("ferryman_runner"), login("ferryman_monitor")
    assert ask("outbox check runner", url=runner)["fits"]
    assert ask("outbox replay --outbox runner", event, *BECAUSE, url=runner)["rows"] == 1
    assert ask("pause --outbox runner", url=runner)["changed"]
    assert ask("resume --outbox runner", url=runner)["changed"]
    assert ask("outbox show --outbox runner", event, url=monitor)["state"] == "pending"
    assert not ask("outbox check runner", url=monitor, exit_code=Exit.FAILURE)["fits"]


def test_login_that_may_not_change_rows_is_what_a_start_names(
    hooks: HookTable, ask: Ask, login: Callable[..., str]
) -> None:
    """The description is right: to change it would not help."""
    courier = login("ferryman_courier")
    user = conninfo.conninfo_to_dict(courier)["user"]
    hooks.db.execute(f"GRANT USAGE ON SCHEMA shop TO {user}; GRANT SELECT ON shop.hooks TO {user}")
    error = ask("drain hooks", url=courier, exit_code=Exit.CONFIGURATION)["error"]
    assert error["setting"] == "database_url"
    hooks.db.execute(error["remedy"][error["remedy"].index("GRANT") :].encode())
    assert ask("drain hooks", url=courier)["failed"] == 0


def test_login_that_may_not_use_the_schema_gets_every_grant_from_check(
    hooks: HookTable, ask: Ask, login: Callable[..., str]
) -> None:
    courier = login()
    remedy = ask("outbox check hooks", url=courier, exit_code=Exit.CONFIGURATION)["error"]["remedy"]
    hooks.db.execute(remedy[remedy.index("GRANT") :].encode())
    flaws = ask("outbox check hooks", url=courier, exit_code=Exit.FAILURE)["flaws"]
    assert [flaw["ddl"].partition(" ON ")[0].split(" (")[0] for flaw in flaws] == [
        "GRANT SELECT", "GRANT UPDATE", f"GRANT ferryman_courier TO {conninfo.conninfo_to_dict(courier)['user']};"
    ]  # fmt: skip
    for flaw in flaws:
        hooks.db.execute(flaw["ddl"].encode())
    assert ask("outbox check hooks", url=courier)["fits"]
