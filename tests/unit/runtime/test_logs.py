"""Logs: one event a line, JSON in a pipe, secrets masked (N14), the libraries' lines among ours."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from ferryman.runtime import logs
from ferryman.runtime.settings import Log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def configured(**settings: str) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(Log.model_validate(settings), stream)
    return stream


def test_in_a_pipe_each_event_is_a_json_object() -> None:
    stream = configured()
    structlog.get_logger().info("published", count=3, topic="orders")
    event = json.loads(stream.getvalue())
    assert {"event": "published", "count": 3, "topic": "orders", "level": "info"}.items() <= event.items()
    assert event["timestamp"].endswith("Z")


def test_for_people_it_is_a_line_without_json() -> None:
    stream = configured(format="console")
    structlog.get_logger().warning("breaker opened", destination="kafka")
    assert "breaker opened" in stream.getvalue()
    assert "destination=kafka" in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_and_payloads_are_masked(form: str) -> None:
    stream = configured(format=form)
    structlog.get_logger().info("x", password="s3cret", payload=b"s3cret", url="postgresql://u:s3cret@h/d")
    assert "s3cret" not in stream.getvalue()


def test_a_secret_in_a_traceback_is_masked() -> None:
    stream = configured()
    try:
        raise ValueError("postgresql://u:s3cret@h/d")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "ValueError" in stream.getvalue()
    assert "s3cret" not in stream.getvalue()


def test_the_libraries_lines_come_the_same_way() -> None:
    stream = configured()
    logging.getLogger("confluent_kafka").info("Running upgrade to password=%s", "s3cret")
    event = json.loads(stream.getvalue())
    assert event["event"] == "Running upgrade to password=***"


def test_less_severe_lines_are_left_out() -> None:
    stream = configured(level="warning")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]
