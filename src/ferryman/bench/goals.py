"""Goals, and the figures that meet or miss them. Every goal's limit is defined here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value. Its value is None if it could not be measured: `raw` says why, and the goal is missed."""

    name: str
    value: float | None
    unit: str
    goal: str
    met: bool
    raw: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the figure as JSON data, with rounded numbers."""
        return dict(rounded(asdict(self)))

    def __str__(self) -> str:
        value = f"{self.value:,.4g} {self.unit}" if self.value is not None else f"not measured: {self.raw['why']}"
        return f"{self.name}: {value}; the goal is {self.goal}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit that a figure must not miss."""

    name: str
    comparison: Literal[">=", "<="]
    limit: float
    unit: str
    about: str

    def figure(self, value: float, **raw: Any) -> Figure:
        """Return the figure of a measured value."""
        met = value >= self.limit if self.comparison == ">=" else value <= self.limit
        return Figure(self.name, value, self.unit, str(self), math.isfinite(value) and met, raw)

    def unmeasured(self, why: str) -> Figure:
        """Return the figure of a value that could not be measured."""
        return Figure(self.name, None, self.unit, str(self), False, {"why": why})

    def __str__(self) -> str:
        return f"{self.comparison} {self.limit:,g}" if self.limit < 1e5 else f"{self.comparison} {self.limit:,.0f}"


def rounded(value: Any) -> Any:
    """Return the value with its floats rounded to four digits; whole numbers stay."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest of the values that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the usual percentiles by their names."""
    return {str(each): percentile(values, each) for each in (50, 90, 95, 99, 99.9, 100)}


DRAIN_RATE = Goal("drain_rate", ">=", 0.65, "of the bare producer", "drain of preloaded entries beside confluent-kafka")
DRAIN_WAL = Goal("drain_wal", "<=", 5, "bytes an entry", "WAL that draining writes")
DEAD_TUPLES = Goal("dead_tuples", "<=", 0, "rows", "dead tuples that draining leaves in the journal")
SNAPSHOT_RATE = Goal("snapshot_rate", ">=", 0.95, "of without", "drain under an open REPEATABLE READ snapshot")
SNAPSHOT_CLAIM = Goal("snapshot_claim", "<=", 1.5, "times the first", "a claim after 20,000 windows under a snapshot")
IDLE_WRITER = Goal("idle_writer", "<=", 2, "times without", "p99 of others while a writer idles in its transaction")
STEADY_WAL = Goal("steady_wal", "<=", 200, "bytes a message", "WAL of the relay at 1,000 messages a second")
LATE_NOTHING = Goal("late_nothing", "<=", 5, "ms", "a window's late part, nothing late, 5,000,000 rows retained")
LATE_RATE = Goal("late_rate", ">=", 200_000, "rows a second", "reading 1,000,000 rows of one late transaction")
MEMORY = Goal("memory", "<=", 150, "MB", "most resident memory of the relay in a drain of 5,000,000")
MEMORY_GROWTH = Goal("memory_growth", "<=", 1.1, "times", "resident memory at 5,000,000 entries to that at 100,000")
LAST_TENTH = Goal("last_tenth", ">=", 0.9, "of the first", "rate of the last tenth of 5,000,000 to the first")
APPEND_MANY = Goal("append_many", ">=", 50_000, "entries a second", "append_many, a thousand at a time, one connection")
APPEND_ONE = Goal("append_one", "<=", 1.15, "times a SELECT 1", "a transaction with one outbox_append, or SELECT 1")
IDLE_CPU = Goal("idle_cpu", "<=", 1, "% of a core", "CPU time of an idle relay")
IDLE_WAL = Goal("idle_wal", "<=", 0, "bytes", "WAL while the relay is idle")
IDLE_XIDS = Goal("idle_xids", "<=", 0, "xids", "transaction numbers taken while the relay is idle")
IDLE_STATEMENTS = Goal("idle_statements", "<=", 60, "a second", "statements of an idle relay")
WAKE = Goal("wake", "<=", 150, "ms", "from COMMIT of the first entry after idleness until a consumer has it")
LATENCY_P50 = Goal("latency_p50", "<=", 8, "ms", "from COMMIT until a consumer has it, 1,000 a second")
LATENCY_P99 = Goal("latency_p99", "<=", 20, "ms", "from COMMIT until a consumer has it, 1,000 a second")
LATENCY_P99_CROWDED = Goal("latency_p99_crowded", "<=", 40, "ms", "the same with two busy processes beside it")
CODEC = Goal("codec", ">=", 0.9, "of fastavro alone", "from a dict to bytes and back, of every type of our catalogue")
INBOX_RATE = Goal("inbox_rate", ">=", 0.6, "of the bare loop", "the wallet's consumer beside psycopg alone, batch 500")
INBOX_STATEMENTS = Goal("inbox_statements", "<=", 8, "a batch", "statements of the wallet's consumer")
INBOX_COMMITS = Goal("inbox_commits", "<=", 1, "a batch", "commits of the wallet's consumer")
INBOX_HOT = Goal("inbox_hot", ">=", 0.5, "of uniform", "every command on one wallet")
INBOX_DUPLICATES = Goal("inbox_duplicates", ">=", 0.8, "of none", "every second message a duplicate, answered again")
INBOX_LATENCY_P99 = Goal("inbox_latency_p99", "<=", 30, "ms", "from readable in Kafka to committed, 1,000 a second")
PIPELINE_RATE = Goal("pipeline_rate", ">=", 5, "times the textbook's", "request to outcome, 100 requests a transaction")
PIPELINE_ONE_RATE = Goal(
    "pipeline_one_rate", ">=", 2.5, "times the textbook's", "request to outcome, one a transaction"
)
PIPELINE_P99 = Goal("pipeline_p99", "<=", 100, "ms", "from COMMIT of a request to its outcome's, at half of that rate")
INBOX_MEMORY = Goal("inbox_memory", "<=", 200, "MB", "most resident memory of the consumer, a backlog of 1,000,000")
HTTP_RATE_SLOW = Goal("http_rate_slow", ">=", 0.9, "of aiohttp alone", "a courier, 64 in flight, answers after 20 ms")
HTTP_RATE_FAST = Goal("http_rate_fast", ">=", 0.35, "of aiohttp alone", "a courier, 64 in flight, answers at once")
SINK_STATEMENTS = Goal("sink_statements", "<=", 8, "a batch", "statements of a courier")
HEALTHY_P99 = Goal("healthy_p99", "<=", 1.5, "times without", "p99 of an endpoint beside one that takes 5 s")
CLAIM_AFTER_MILLION_DONE = Goal(
    "claim_after_million_done", "<=", 2, "times without", "a claim over 1,000,000 delivered rows"
)
SAGA_APPLY_RATE = Goal(
    "saga_apply_rate", ">=", 0.5, "of the bare loop", "results applied beside psycopg alone, batch 500"
)
SAGA_START_RATE = Goal(
    "saga_start_rate", ">=", 0.5, "of the bare loop", "starts beside bare INSERTs and append_many, batch 500"
)
SAGA_ONE_RATE = Goal("saga_one_rate", ">=", 0.3, "of many", "results of one saga that stays, batch 500")
SAGA_DUE = Goal("saga_due", "<=", 1.5, "times beside 1,000", "500 due sagas beside 1,000,000 that wait")
WEBHOOK_ROUTING = Goal(
    "webhook_routing", "<=", 3, "times a bare INSERT", "one event to 100,000 subscriptions beside the same rows"
)
WEBHOOK_APPLY_RATE = Goal(
    "webhook_apply_rate", ">=", 0.5, "of the bare loop", "results of deliveries beside psycopg alone, batch 500"
)
WEBHOOK_DUE = Goal("webhook_due", "<=", 1.5, "times beside 1,000", "500 due deliveries beside 1,000,000 that wait")
WEBHOOK_RATE = Goal(
    "webhook_rate", ">=", 0.6, "of aiohttp alone", "from an event to its receivers, which answer after 20 ms"
)
WEBHOOK_HEALTHY_P99 = Goal(
    "webhook_healthy_p99", "<=", 2, "times without", "p99 of an endpoint beside 1,000,000 jobs of a dead one"
)
SMTP_RATE = Goal("smtp_rate", ">=", 0.6, "of aiosmtplib alone", "16 connections, the server accepts after 20 ms")
SMTP_RATE_FAST = Goal("smtp_rate_fast", ">=", 0.25, "of aiosmtplib alone", "16 connections, it accepts at once")
MAIL_STATEMENTS = Goal("mail_statements", "<=", 8, "a batch", "statements of a courier by SMTP")
CLAIM_AFTER_MILLION_SENT = Goal(
    "claim_after_million_sent", "<=", 2, "times without", "a claim over 1,000,000 sent mails of memos"
)
CLAIM_BESIDE_MILLION_WAITING = Goal(
    "claim_beside_million_waiting", "<=", 2, "times without", "a claim beside 1,000,000 rows of another endpoint"
)
