"""An error that nobody expected ends the relay: a bug must not be retried for ever, nor hide in one of its threads."""

import threading

import pytest
from structlog.testing import capture_logs

from ferryman.relay.service import JournalRelay
from ferryman.runtime.life import Life
from ferryman.runtime.service import _Running
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_relay import RelayRing
from support.describing import Memos


@pytest.fixture
def memos(ferryman_database_url: str, ferryman_db: object, ferryman_kafka: str) -> Memos:
    return Memos(ferryman_database_url, ferryman_kafka, ferryman_db)  # type: ignore[arg-type]


def failing_at(settings: Settings, step: str) -> JournalRelay:
    def before(reached: str) -> None:
        if reached == step:
            raise KeyError(step)

    return JournalRelay(settings, before)


@pytest.mark.parametrize("step", ["claim", "rotate", "claim rows"])
def test_bug_in_any_thread_of_the_relay_ends_it_with_a_traceback(memos: Memos, step: str) -> None:
    """In a worker, in the housekeeper, and in the service of a described outbox."""
    ring = RelayRing(rotate_seconds=0.001, retention_seconds=0)
    settings = memos.settings
    settings = settings.model_copy(update={"relay": settings.relay.model_copy(update={"ring": ring})})
    memos.write("k")
    memos.db.execute("SELECT ferryman.outbox_append('nowhere', 'k', 't', '')")
    relay = failing_at(settings, step)
    service = relay.described[0] if step == "claim rows" else relay
    life = Life(service.name)
    with capture_logs() as logs:
        running = _Running(service, life, threading.Event())
        running.start()
        running.join(20)
        life.stopping.set()
        running.join(20)
        assert not running.is_alive()
    assert type(running.error) is KeyError
    crashes = [each for each in logs if each["event"] in ("crashed", "failed")]
    assert crashes
    for each in crashes:
        assert each["error"] == "KeyError"
        assert "test_relay_bugs.py" in str(each["where"])
