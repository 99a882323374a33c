"""Every setting, with its default, its unit and its danger beside it. Parsed once, passed around, never fetched."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import SecretStr, model_validator

from ferryman.runtime.redaction import redact_value
from ferryman.runtime.setting import Port, Seconds, Section, setting
from ferryman.runtime.settings_api import Api
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.settings_payments import Payments, Wallet
from ferryman.runtime.settings_relay import Relay


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


class Consumer(Section):
    """How consumers take messages from Kafka and handle them, each once."""

    batch_messages: int = setting(500, "The most messages of one transaction.", unit="messages", ge=1, le=10000)
    poll_seconds: float = setting(0.1, "How long to wait for messages when none are there.", unit="seconds", gt=0, le=5)
    buffer_bytes: int = setting(
        64 << 20, "When so much waits to be handled, no more is fetched.", unit="bytes", ge=1 << 20
    )
    start: Literal["earliest", "latest"] = setting(
        "earliest", "Where a group begins in a partition that it has never read.",
        danger="with latest, what is there already is never handled, nor what is in a new partition when it is seen",
    )  # fmt: skip
    instance_id: str | None = setting(
        None, "A name for this process that it keeps over restarts (static membership): no rebalance while it is away "
        "for less than session.timeout.ms.",
        danger="two processes with the same name fence each other",
    )  # fmt: skip
    tries: int = setting(3, "How often a message is tried whose handler fails, before it is rejected.", ge=1, le=100)
    kills: int = setting(3, "How often a message may end its process, before it is rejected.", ge=1, le=100)
    retry_seconds: float = setting(
        300.0, "How long a message is tried again for what may pass: deadlocks, lock timeouts, sessions that end under "
        "it, statements that take longer than the deadline, and what a handler wants later.",
        unit="seconds", gt=0,
    )  # fmt: skip
    deadline_seconds: float = setting(
        20.0, "After this long a batch's statement is cancelled, and the batch taken apart; a handler that still does "
        "not return ends the process.",
        unit="seconds", gt=0, danger="keep it below health.stall_seconds, Kafka's max.poll.interval.ms, and "
        "database.idle_in_transaction_timeout_seconds, which is checked",
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
    outbox: dict[str, Outbox] = setting({}, "Tables that are outboxes already, by a name of yours.")
    consumer: Consumer = setting(Consumer, "How consumers take messages from Kafka and handle them, each once.")
    payments: Payments = setting(Payments, "How `ferryman run payments` has payments done.")
    wallet: Wallet = setting(Wallet, "How `ferryman run wallet` tells of what it does.")
    api: Api = setting(Api, "How `ferryman run api` answers over HTTP.")
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
