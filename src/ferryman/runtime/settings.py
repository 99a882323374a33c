"""Every setting, with its default, its unit and its danger beside it. Parsed once, passed around, never fetched."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from ferryman.runtime.redaction import redact_value


def setting(default: Any, text: str, *, unit: str = "", danger: str = "", **limits: Any) -> Any:
    """A field that explains itself: the docs, `config show` and the JSON Schema are made from it."""
    extra: dict[str, Any] = {key: value for key, value in (("unit", unit), ("danger", danger)) if value}
    if isinstance(default, type) and issubclass(default, BaseModel):
        return Field(default_factory=default, description=text, **limits)
    return Field(default, description=text, json_schema_extra=extra or None, **limits)


Seconds = Annotated[float, Field(gt=0, le=86400)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Database(Section):
    """How each process connects to PostgreSQL."""

    pool_max: int = setting(
        8, "The most connections one process holds.", unit="connections", ge=1, le=1000,
        danger="every replica has its own pool: keep the sum below the server's max_connections",
    )  # fmt: skip
    connect_timeout_seconds: Seconds = setting(5.0, "How long to wait for a connection.", unit="seconds")
    statement_timeout_seconds: Seconds = setting(
        30.0, "The longest a statement may run before the server cancels it.", unit="seconds",
        danger="too low, and a large batch never settles; too high, and a stuck statement holds its locks as long",
    )  # fmt: skip
    lock_timeout_seconds: Seconds = setting(5.0, "The longest a statement may wait for a lock.", unit="seconds")
    idle_in_transaction_timeout_seconds: Seconds = setting(
        60.0, "After this long without a statement inside a transaction the server ends the session.", unit="seconds",
        danger="a process that hangs holds its lanes and row locks for so long",
    )  # fmt: skip


class Kafka(Section):
    """How each process connects to Kafka. Any librdkafka property may stand beside these, under its own name."""

    bootstrap_servers: str | None = setting(None, "The brokers to find the cluster by: host:port, comma-separated.")
    timeout_seconds: Seconds = setting(
        10.0, "How long a question to the cluster (metadata, groups, topics) may take.", unit="seconds"
    )
    allow_message_loss: bool = setting(
        False, "Lets librdkafka properties through that the guarantees stand on: acks, idempotence, gaps, deadlines.",
        danger="messages are lost, doubled or out of order",
    )  # fmt: skip
    allow_unverified_brokers: bool = setting(
        False, "Lets properties through that switch the check of a broker's certificate off.",
        danger="anyone on the way reads and writes the messages",
    )  # fmt: skip
    properties: dict[str, str] = setting(
        {}, "librdkafka properties, passed through: `security.protocol`, `sasl.username`, `ssl.ca.location`, ..."
    )

    @model_validator(mode="before")
    @classmethod
    def _gather_properties(cls, values: Any) -> Any:
        """Moves every name that is not a setting of ours into `properties`, dotted."""
        if not isinstance(values, Mapping):
            return values
        own = {name: value for name, value in values.items() if name in cls.model_fields and name != "properties"}
        loose = {name: value for name, value in values.items() if name not in cls.model_fields}
        given = values.get("properties", {})
        return own | {"properties": dict(_dotted(loose)) | (dict(_dotted(given)) if isinstance(given, Mapping) else {})}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact_value(name or "", value)


class Source(Section):
    """One database whose outbox the relay publishes."""

    database_url: SecretStr = setting(
        ..., "Its database: postgresql://user:password@host:port/name.",
        danger="it holds a password: the name with _FILE behind it names a file that holds it instead",
    )  # fmt: skip
    ce_source: str | None = setting(None, "Its `ce_source` header. Default: `/` and the database's name.")


class RelayRetry(Section):
    """How often an entry is tried that fails for a reason of its own; outages burn no attempt."""

    limit: int = setting(5, "After so many failed attempts an entry is FAILED.", unit="attempts", ge=1, le=1000)
    base_seconds: Seconds = setting(1.0, "The wait after the first failure; it doubles with each.", unit="seconds")
    cap_seconds: Seconds = setting(300.0, "The longest wait.", unit="seconds")
    offset: int = setting(1, "Of `base * 2 ** (attempts - offset)`.", ge=0, le=10)
    jitter: float = setting(0.1, "Up to this share of a wait is taken off at random.", ge=0, le=1)


class RelayRing(Section):
    """How long entries are kept, published ones too: the horizon of a replay."""

    retention_seconds: float = setting(
        86400.0, "Entries are kept at least so long after they were published.", unit="seconds", ge=0,
        danger="what was deleted cannot be replayed",
    )  # fmt: skip
    rotate_seconds: float = setting(
        3600.0, "New entries go to the next of the eight segments after so long.", unit="seconds", gt=0
    )
    rotate_bytes: int = setting(1 << 30, "Or when the segment has grown to this size.", unit="bytes", ge=1 << 16)
    key_retention_seconds: float = setting(
        2_592_000.0, "Idempotency keys are remembered so long.", unit="seconds", gt=0,
        danger="an append that is repeated later than this is published again",
    )  # fmt: skip


class Relay(Section):
    """How `ferryman run relay` publishes outboxes to Kafka."""

    sources: dict[str, Source] = setting(
        {}, "Databases by a name of yours, each with its own outbox. Default: one, `database_url`."
    )
    ce_source: str | None = setting(None, "The `ce_source` header. Default: `/` and the database's name.")
    workers: int = setting(2, "Workers for each source: one reads while another publishes.", ge=1, le=8)
    batch_entries: int = setting(1000, "The most entries of one read.", unit="entries", ge=1, le=10000)
    tenure_seconds: float = setting(
        0.05, "How long a worker publishes from its lanes before it writes down how far it came.", unit="seconds",
        gt=0, le=10, danger="a crash publishes up to so much again, with the same ids",
    )  # fmt: skip
    pause_seconds: float = setting(0.002, "How long to wait for more when little came.", unit="seconds", gt=0, le=1)
    idle_seconds: float = setting(
        0.075, "When nothing comes, how often to look: with one cheap statement, and no NOTIFY.", unit="seconds",
        gt=0, le=60, danger="the first entry after a quiet time waits for so long",
    )  # fmt: skip
    deadline_seconds: float = setting(
        10.0, "What Kafka did not acknowledge within this time is unknown, and sent again.", unit="seconds",
        ge=2, le=600,
        danger="a claim stays open for so long while the broker is silent; keep it below service.drain_seconds",
    )  # fmt: skip
    retry: RelayRetry = setting(RelayRetry, "How often an entry is tried that fails for a reason of its own.")
    max_outage_seconds: float | None = setting(
        None, "Entries that wait longer than this for a topic that refuses everything are FAILED. Default: they wait.",
        unit="seconds", gt=0,
    )  # fmt: skip
    unordered_topics: list[str] = setting(
        [], "Topics in which a failing entry does not hold back the later ones of its key.",
        danger="their readers see entries of one key out of order",
    )  # fmt: skip
    compacted_topics: list[str] = setting(
        [], "Topics that may be published to although their cleanup.policy is compact.",
        danger="a late duplicate overwrites a newer value, unless readers compare positions",
    )  # fmt: skip
    backlog_seconds: Seconds = setting(15.0, "How often the metrics of the backlog are taken.", unit="seconds")
    ring: RelayRing = setting(RelayRing, "How long entries are kept.")


class Consumer(Section):
    """How consumers take messages from Kafka and handle them, each once."""

    batch_messages: int = setting(500, "The most messages of one transaction.", unit="messages", ge=1, le=10000)
    poll_seconds: float = setting(0.1, "How long to wait for messages when none are there.", unit="seconds", gt=0, le=5)
    buffer_bytes: int = setting(
        64 << 20, "When so much waits to be handled, no more is fetched.", unit="bytes", ge=1 << 20
    )
    start: Literal["earliest", "latest"] = setting(
        "earliest", "Where a group begins in a partition that it has never read.",
        danger="with latest, what is there already is never handled",
    )  # fmt: skip
    instance_id: str | None = setting(
        None, "A name for this process that it keeps over restarts (static membership): no rebalance while it is away "
        "for less than session.timeout.ms.",
        danger="two processes with the same name fence each other",
    )  # fmt: skip
    tries: int = setting(3, "How often a message is tried whose handler fails, before it is rejected.", ge=1, le=100)
    kills: int = setting(3, "How often a message may end its process, before it is rejected.", ge=1, le=100)
    retry_seconds: float = setting(
        300.0, "How long deadlocks, lock timeouts and what a handler wants later are tried again.", unit="seconds", gt=0
    )
    deadline_seconds: float = setting(
        20.0, "After this long a batch's statement is cancelled, and the batch taken apart; a handler that still does "
        "not return ends the process.",
        unit="seconds", gt=0, danger="keep it below health.stall_seconds, and below Kafka's max.poll.interval.ms",
    )  # fmt: skip
    receipts_retention_seconds: float = setting(
        2_592_000.0, "How long it is remembered that a message was handled; 0 is for ever.", unit="seconds", ge=0,
        danger="a message that comes again later takes effect again: it is checked against the topics' retention",
    )  # fmt: skip
    replay_seconds: float = setting(
        86400.0, "How far back its writers replay what they published.", unit="seconds", ge=0
    )
    dead_letter_seconds: float = setting(
        604_800.0, "How long a rejected message may wait to be requeued.", unit="seconds", ge=0
    )


class Payments(Section):
    """How `ferryman run payments` has payments done."""

    answer_seconds: Seconds = setting(
        300.0, "How long a participant may take to answer; then what it was asked for is cancelled.", unit="seconds",
        danger="too low, and payments fail that would have been done",
    )  # fmt: skip
    again_seconds: Seconds = setting(
        10.0, "After how long a cancellation or a refund is asked for again; it doubles each time.", unit="seconds"
    )
    longest_seconds: Seconds = setting(3600.0, "The longest time between two of them.", unit="seconds")
    most_attempts: int = setting(
        12, "How often it is asked for; then the payment waits for a person: `ferryman reconcile payments`.",
        ge=1, le=1000,
    )  # fmt: skip
    events: bool = setting(
        True, "Whether everyone is told on `payments.events`: two more entries for each payment.",
        danger="without, that topic stays silent",
    )  # fmt: skip
    wallet_database_url: SecretStr | None = setting(
        None, "The wallet's database, for those who look at both: `trace`, `reconcile` and `audit`.",
        danger="it holds a password: the name with _FILE behind it names a file that holds it instead",
    )  # fmt: skip


class Schemas(Section):
    """The catalogue of topics and types that messages are checked against."""

    path: str | None = setting(
        None, "The folder of your catalogue: `catalogue.toml`, `avro/` and `released/`. Default: Ferryman's own."
    )


class Registry(Section):
    """How the schema registry is asked that `registry_url` names."""

    timeout_seconds: Seconds = setting(5.0, "How long an answer may take.", unit="seconds")
    cache: str | None = setting(
        None, "A folder that keeps what the registry said, so that a process can start while it is away."
    )
    properties: dict[str, SecretStr] = setting(
        {}, "Properties of Confluent's own client, for OAuth and mutual TLS: `bearer.auth.token`, "
        "`ssl.certificate.location`, ... Where one is set, that client asks, from the extra `registry`.",
    )  # fmt: skip


class Log(Section):
    """What a process says about itself, on standard error."""

    format: Literal["auto", "console", "json"] = setting("auto", "`auto`: console on a terminal, JSON in a pipe.")
    level: Literal["debug", "info", "warning", "error"] = setting("info", "The least severe line that is written.")


class Health(Section):
    """The HTTP endpoint with /livez, /readyz and /metrics."""

    enabled: bool = setting(True, "Whether `ferryman run` serves the endpoint.")
    host: str = setting(
        "127.0.0.1", "The address to listen on; in a container, 0.0.0.0.",
        danger="the endpoint has no authentication: anyone who reaches it reads the metrics",
    )  # fmt: skip
    port: Port = setting(9464, "The port to listen on; 0 takes a free one, which the log names.")
    stall_seconds: Seconds = setting(
        30.0, "A loop that made no progress for so long is reported dead by /livez.", unit="seconds",
        danger="an orchestrator restarts a process that is reported dead: keep it above the longest batch",
    )  # fmt: skip


class Service(Section):
    """How a process ends."""

    drain_seconds: Seconds = setting(
        20.0, "After SIGTERM, how long the work in flight may take to finish.", unit="seconds",
        danger="keep it below the orchestrator's limit (Kubernetes: 30 s), or the process is killed while it drains",
    )  # fmt: skip


class Settings(Section):
    """The whole of `ferryman.toml`. Each setting has an environment name too: `FERRYMAN_` + section + `__` + name."""

    database_url: SecretStr | None = setting(
        None, "The PostgreSQL database: postgresql://user:password@host:port/name. `DATABASE_URL` is honoured.",
        danger="it holds a password: FERRYMAN_DATABASE_URL_FILE names a file that holds it instead",
    )  # fmt: skip
    registry_url: str | None = setting(
        None, "The schema registry's Confluent API (http://host:port/...), or a folder of its own (file:///...)."
    )
    database: Database = setting(Database, "How each process connects to PostgreSQL.")
    kafka: Kafka = setting(Kafka, "How each process connects to Kafka.")
    relay: Relay = setting(Relay, "How `ferryman run relay` publishes outboxes to Kafka.")
    consumer: Consumer = setting(Consumer, "How consumers take messages from Kafka and handle them, each once.")
    payments: Payments = setting(Payments, "How `ferryman run payments` has payments done.")
    schemas: Schemas = setting(Schemas, "The catalogue of topics and types.")
    registry: Registry = setting(Registry, "How the schema registry is asked.")
    log: Log = setting(Log, "What a process says about itself.")
    health: Health = setting(Health, "The HTTP endpoint with /livez, /readyz and /metrics.")
    service: Service = setting(Service, "How a process ends.")


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """librdkafka's dotted names, whether TOML had them in quotes or read them as nested tables."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name, str(value).lower() if isinstance(value, bool) else str(value)
