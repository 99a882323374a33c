"""The dry run of a replay names everything that an operator could be surprised by."""

import pytest

from ferryman.cli.outbox_acts import _plan_lines


@pytest.mark.parametrize(("status", "overtaken"), [("FAILED", True), ("DISCARDED", True), ("PUBLISHED", False)])
def test_dry_run_says_that_later_entries_of_the_key_are_out_already(status: str, overtaken: bool) -> None:
    """N4 holds for first occurrences, and later entries of the key did not wait for one that FAILED."""
    plan = {
        "complete": True,
        "entries": 3,
        "by_status": {status: 3},
        "payload_bytes": 0,
        "skipped": {},
        "seconds": None,
    }
    assert any("come behind later ones" in line for line in _plan_lines(plan)) == overtaken
