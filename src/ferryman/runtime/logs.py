"""Logs on standard error, as events with fields: readable on a terminal, JSON in a pipe, secrets masked in both."""

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from ferryman.runtime.redaction import redact_value
from ferryman.runtime.settings import Log


def configure(settings: Log, stream: TextIO | None = None) -> None:
    """Send our events and those of the libraries (librdkafka, uvicorn) the same way."""
    stream = stream or sys.stderr
    as_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor]
    if as_json:
        last = [structlog.processors.format_exc_info, mask_secrets, structlog.processors.JSONRenderer(default=str)]
    else:
        plain = structlog.dev.plain_traceback
        colours = stream.isatty()
        last = [mask_secrets, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.level.upper())),
        cache_logger_on_first_use=False,
    )


def mask_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask secrets and payloads, as the last step before an event is written."""
    return {name: redact_value(name, value) for name, value in event.items()}


def frames(error: BaseException) -> list[str]:
    """Return the place of each call that led to an error: file, line and function, without any values."""
    return [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_tb(error.__traceback__)]
