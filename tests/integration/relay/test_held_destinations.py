"""The destinations that a courier does not try: paused by a person, or held by its own function."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest
from structlog.testing import capture_logs

from ferryman import Courier
from ferryman.relay.described import held
from ferryman.runtime.desk import WHOLE_OUTBOX, Act, Desk, change_pause
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.postgres import Connection
from support.hooks import HookTable


@pytest.fixture
def hooks(ferryman_database_url: str, ferryman_db: Connection) -> HookTable:
    return HookTable(ferryman_database_url, ferryman_db)


def test_pauses_and_held_destinations_are_looked_for_once_a_second(
    hooks: HookTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, asked, now = Courier("worker", outbox="hooks"), list[float](), 100.0
    monkeypatch.setattr(held, "time", SimpleNamespace(monotonic=lambda: now))

    @own.held
    def mine(_: Any) -> list[str]:
        asked.append(now)
        return ["http://held/"]

    acts: list[tuple[Literal["pause", "resume"], str]] = [
        ("pause", "http://one/"), ("pause", WHOLE_OUTBOX), ("resume", WHOLE_OUTBOX),
    ]  # fmt: skip
    desk, act = Desk(hooks.db, hooks.settings.database), Act("ann", "theirs is down")
    found = []
    with hooks.courier(own) as turns, capture_logs() as logs:
        for verb, destination in acts:
            change_pause(desk, verb, "outbox", "hooks", act, destination=destination)
            for _ in range(2):
                turns.run_once()
                found.append((turns.service.held.paused, set(turns.service.held.avoided)))
            now += 1.0
    avoided = {"http://held/", "http://one/"}
    assert found == [(False, avoided)] * 2 + [(True, avoided)] * 2 + [(False, avoided)] * 2
    assert asked == [100.0, 101.0, 102.0]
    assert [each["event"] for each in logs if each["event"] in ("paused", "resumed")] == ["paused", "resumed"]


def test_held_that_fails_is_logged_when_it_begins_to_fail(hooks: HookTable) -> None:
    own = Courier("worker", outbox="hooks")
    answers: list[Any] = [ValueError("no"), ValueError("no"), KeyError("no"), [], ValueError("no")]

    @own.held
    def mine(_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with hooks.courier(own) as turns, capture_logs() as logs:
        while answers:
            turns.service.held.next_at = 0.0
            turns.run_once()
    events = [each["event"].partition(":")[0] for each in logs if each["event"].startswith("held ")]
    assert events == ["held failed", "held failed", "held works again", "held failed"]


def test_lost_connection_in_held_is_no_bug_of_it(hooks: HookTable) -> None:
    """N11: the service connects again."""
    own = Courier("worker", outbox="hooks")
    own.held(lambda db: db.execute("SELECT pg_terminate_backend(pg_backend_pid())").fetchall())
    with hooks.courier(own) as turns, capture_logs() as logs:
        with pytest.raises(Unreachable):
            turns.run_once()
        assert turns.table.connection.broken
    assert [each for each in logs if each["event"].startswith("held failed")] == []
