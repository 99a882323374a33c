"""Times in a form for people."""

from datetime import UTC, datetime

import psycopg
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzLoader

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def span(seconds: float) -> str:
    """Return a duration in the two largest units that fit it."""
    whole = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in _UNITS:
        count, whole = divmod(whole, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


_ENDLESS = {datetime.max.replace(tzinfo=UTC): "infinity", datetime.min.replace(tzinfo=UTC): "-infinity"}
_AFTER, _BEFORE = _ENDLESS


class EndlessTimes(TimestamptzLoader):
    """A loader for people, which takes times outside Python's years, as `infinity` is, for the last or the first."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            return _BEFORE if bytes(data).startswith(b"-") or bytes(data).endswith(b"BC") else _AFTER


def iso(when: datetime) -> str:
    return _ENDLESS.get(when) or when.isoformat()


def moment(when: datetime) -> str:
    return _ENDLESS.get(when) or when.astimezone().isoformat(sep=" ", timespec="seconds")
