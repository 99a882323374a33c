"""Times in a form for people."""

from datetime import datetime

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


def moment(when: datetime) -> str:
    return when.astimezone().isoformat(sep=" ", timespec="seconds")
