"""The settings of the memos' worker: they fit together, whatever is set."""

import pytest

from ferryman.cli import wiring
from ferryman.relay.described.service import DescribedOutbox
from ferryman.runtime.settings_outbox import Outbox
from ferryman.services.memos.memos_settings import MemosSettings, described


@pytest.mark.parametrize(("timeout_seconds", "lease_seconds"), [(5, 60), (15, 60), (25, 75), (60, 180)])
def test_lease_of_the_mails_covers_the_time_that_one_may_take(timeout_seconds: float, lease_seconds: float) -> None:
    """No setting of its own is needed for a slow server."""
    found = wiring.with_outboxes(wiring.settings_class().model_validate({
        "database_url": "postgresql://nobody@nowhere/db", "service": {"drain_seconds": timeout_seconds + 5},
        "email": {"provider": "smtp", "sender": "a@example.com", "timeout_seconds": timeout_seconds,
                  "smtp": {"host": "mail.example.com"}},
    }))  # fmt: skip
    [delivering, _] = wiring.services(["memos"], found)
    assert isinstance(delivering, DescribedOutbox)
    assert (delivering.outbox.lease.seconds, delivering.outbox.table) == (lease_seconds, "memos.email_outbox")


def test_settings_of_the_memos_are_those_of_their_outbox() -> None:
    given = {
        "base_seconds": 1.0, "cap_seconds": 7.0, "count_outages": True, "max_outage_seconds": 90.0, "per_second": 2.0,
    }  # fmt: skip
    outbox = Outbox.model_validate(described(MemosSettings.model_validate(given), 15))
    assert {**outbox.retry.model_dump(include=set(given)), "per_second": outbox.per_second} == given
