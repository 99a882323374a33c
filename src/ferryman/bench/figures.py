"""A goal is a comparison with a limit; a figure is what was measured, and whether it meets its goal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """One goal's value. It has none when it could not be measured, and `raw` says why: then it is not met."""

    name: str
    value: float | None
    unit: str
    goal: str
    met: bool
    raw: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": rounded(self.value),
            "unit": self.unit,
            "goal": self.goal,
            "met": self.met,
            "raw": {key: rounded(value) for key, value in self.raw.items()},
        }


@dataclass(frozen=True, slots=True)
class Goal:
    """What is promised of one figure."""

    name: str
    comparison: Literal[">=", "<="]
    limit: float
    unit: str
    about: str

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.comparison == ">=" else value <= self.limit

    def figure(self, value: float, **raw: Any) -> Figure:
        return Figure(self.name, value, self.unit, str(self), math.isfinite(value) and self.met_by(value), raw)

    def unmeasured(self, why: str) -> Figure:
        return Figure(self.name, None, self.unit, str(self), False, {"why": why})

    def __str__(self) -> str:
        return f"{self.comparison} {self.limit:,g}" if self.limit < 1e5 else f"{self.comparison} {self.limit:,.0f}"


def rounded(value: Any) -> Any:
    """Four digits are more than any of these figures is worth; whole numbers stay."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)
