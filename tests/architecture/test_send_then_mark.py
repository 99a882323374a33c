"""Section 8.3 of the reviews' document: what is sent is sent first, and marked by the settling of its outcome alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("src/ferryman", "relay", "consumer", "saga", "services")
# The ways out: Kafka's acknowledges by itself, and has no channel.
MAY_DELIVER = ("src/ferryman/channels/", "relay/described/kafka_way.py")
MARKS = re.compile(r"UPDATE notifier\.deliveries.*?SET[^;]*?\b(notified_at|notification_id)\s*=", re.DOTALL)


def files() -> Iterator[Path]:
    for room in ROOMS:
        yield from (each for each in sorted((ROOT / room).rglob("*.py")) if not each.is_symlink())


def makes_a_delivered(text: str) -> bool:
    """Return True if the code makes the outcome that says that something was delivered."""
    called = (each.func for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call))
    return any("Delivered" in (getattr(each, "id", ""), getattr(each, "attr", "")) for each in called)


def marks_a_delivery(text: str) -> bool:
    return bool(MARKS.search(text))


def test_rule_8_3_only_a_way_out_says_that_something_was_delivered() -> None:
    makers = {str(each.relative_to(ROOT)) for each in files() if makes_a_delivered(each.read_text())}
    assert {each for each in makers if not each.startswith(MAY_DELIVER)} == set()
    assert any(each.startswith("src/ferryman/channels/email/") for each in makers)


def test_rule_8_3_no_statement_of_the_notifier_marks_a_delivery() -> None:
    """The engine's settling does, with the words of its description."""
    assert [each.name for each in files() if marks_a_delivery(each.read_text())] == []


@pytest.mark.parametrize("text", ["Delivered('m-1')", "outcome.Delivered()", "x = [Delivered(reference=y)]"])
def test_a_delivered_is_found_wherever_it_is_made(text: str) -> None:
    assert makes_a_delivered(text)
    assert not makes_a_delivered(text.replace("Delivered", "Retry"))


def test_a_statement_that_marks_is_found() -> None:
    assert marks_a_delivery("-- x\nUPDATE notifier.deliveries d\nSET status = 'sent',\n  notified_at = now()")
    assert not marks_a_delivery("UPDATE notifier.deliveries d SET status = 'queued' WHERE notified_at IS NULL")
