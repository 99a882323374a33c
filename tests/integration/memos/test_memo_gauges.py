"""The gauges of the mails: they say what `ferryman outbox stats` says."""

import pytest

from ferryman.relay import metrics
from ferryman.relay.admin import described_rows, row_facts
from ferryman.relay.described.housekeeping import RowHousekeeping
from ferryman.relay.described.table import open_table
from ferryman.runtime.desk import Desk
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Database
from ferryman.runtime.settings_outbox import Outbox
from ferryman.services.memos.memos import MemoInput, create_memo
from ferryman.services.memos.memos_settings import MemosSettings, described

# The status, the failures so far, the error, the age of the claim in seconds, and the gauge that counts the mail.
STATES = [
    ("PENDING", 0, None, None, "pending"),
    ("PENDING", 2, "452 mailbox full", 5, "retrying"),
    ("SENDING", 1, "claimed", 5, "claimed"),
    ("SENDING", 1, "claimed", 3600, "claimed"),
    ("FAILED", 5, "452 mailbox full", 5, "failed"),
    ("FAILED", 1, "in doubt: no reply", 5, "held"),
    ("FAILED", 1, "discarded by hand: a test", 5, None),
    ("SENT", 0, None, 5, None),
]
GAUGES = {
    "pending": metrics.PENDING, "retrying": metrics.RETRYING, "claimed": metrics.CLAIMED, "failed": metrics.DEAD,
    "held": metrics.HELD,
}  # fmt: skip


def shown(source: str) -> dict[str, float]:
    return {name: gauge.labels(source, "email")._value.get() for name, gauge in GAUGES.items()}


@pytest.mark.parametrize("times", [1, 3])
def test_gauges_count_the_mails_by_state_as_the_command_does(ferryman_db: Connection, times: int) -> None:
    """N13: a held mail is not FAILED besides, and one that was given up by hand raises no alert."""
    for status, count, error, age, _ in STATES * times:
        mail = create_memo(ferryman_db, MemoInput("HR", "people", "Party", "ann@example.com", "Text")).mail
        ferryman_db.execute(
            "UPDATE memos.email_outbox SET status = %s, retry_count = %s, error_message = %s,"
            " last_attempt_at = now() - make_interval(secs => %s) WHERE id = %s", (status, count, error, age, mail),
        )  # fmt: skip
    outbox, source = Outbox.model_validate(described(MemosSettings(), 15)), f"memos-{times}"
    table = open_table(ferryman_db, source, outbox, Database())
    RowHousekeeping(source, outbox, source, 15).measure(table)
    counts = {name: times * sum(each[4] == name for each in STATES) for name in GAUGES}
    assert shown(source) == counts
    rows = described_rows.open_rows(Desk(ferryman_db, Database()), "memos", "memos", outbox)
    said = row_facts.statistics(rows)
    assert {**{name: said[name] for name in ("pending", "retrying", "failed", "held")},
            "claimed": said["sending"] + said["lost"]} == counts  # fmt: skip
    ferryman_db.execute("UPDATE memos.email_outbox SET status = 'SENT'")
    RowHousekeeping(source, outbox, source, 15).measure(table)
    assert set(shown(source).values()) == {0}
