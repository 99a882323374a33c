"""The engine's settings, each with its default, unit and danger. Parsed once, passed around, never fetched."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, SecretStr, model_validator

from ferryman.runtime.redaction import redact_value
from ferryman.runtime.setting import Port, Seconds, Section, TextLike, leaves, setting
from ferryman.runtime.settings_email import Email
from ferryman.runtime.settings_http import Http
from ferryman.runtime.settings_outbox import Outbox, OutboxName
from ferryman.runtime.settings_relay import Relay

SectionT = TypeVar("SectionT", bound=BaseModel)


class Database(Section):
    """The connection of each process to PostgreSQL."""

    pool_max: int = setting(
        8, "The most connections one process holds.", unit="connections", ge=1, le=1000,
        danger="every replica has its own pool: keep the sum below the server's max_connections",
    )  # fmt: skip
    connect_timeout_seconds: Seconds = setting(5.0, "How long to wait for a connection.", unit="seconds")
    statement_timeout_seconds: Seconds = setting(
        30.0, "The longest a statement may run before the server cancels it.", unit="seconds",
        danger="if too low, a large batch never settles; if too high, a stuck statement holds its locks that long",
    )  # fmt: skip
    lock_timeout_seconds: Seconds = setting(5.0, "The longest a statement may wait for a lock.", unit="seconds")
    idle_in_transaction_timeout_seconds: Seconds = setting(
        60.0, "After this long without a statement inside a transaction the server ends the session.", unit="seconds",
        danger="a process that hangs holds its lanes and row locks that long",
    )  # fmt: skip


class Kafka(Section):
    """The connection of each process to Kafka. Any librdkafka property may be set here, under its own name."""

    bootstrap_servers: str | None = setting(None, "The brokers to find the cluster by: host:port, comma-separated.")
    timeout_seconds: Seconds = setting(
        10.0, "How long a request to the cluster (metadata, groups, topics) may take.", unit="seconds"
    )
    allow_message_loss: bool = setting(
        False, "Accept librdkafka properties that break the guarantees: acks, idempotence, gaps, deadlines.",
        danger="messages are lost, duplicated or out of order",
    )  # fmt: skip
    allow_unverified_brokers: bool = setting(
        False, "Accept properties that switch off the check of a broker's certificate.",
        danger="anyone on the network path can read and write the messages",
    )  # fmt: skip
    properties: dict[str, str] = setting(
        {}, "librdkafka properties, passed through: `security.protocol`, `sasl.username`, `ssl.ca.location`, ..."
    )

    @model_validator(mode="before")
    @classmethod
    def _gather_properties(cls, values: Any) -> Any:
        """Move every name that is not a setting of ours into `properties`, dotted."""
        if not isinstance(values, Mapping):
            return values
        own = {name: value for name, value in values.items() if name in cls.model_fields and name != "properties"}
        loose = {name: value for name, value in values.items() if name not in cls.model_fields}
        given = values.get("properties", {})
        return own | {"properties": _dotted(loose) | (_dotted(given) if isinstance(given, Mapping) else {})}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact_value(name or "", value)


class ConsumerSettings(Section):
    """The settings of consumers, which read messages from Kafka and handle each once."""

    batch_messages: int = setting(500, "The most messages in one transaction.", unit="messages", ge=1, le=10000)
    poll_seconds: float = setting(0.1, "How long to wait for messages when there are none.", unit="seconds", gt=0, le=5)
    buffer_bytes: int = setting(
        64 << 20, "Fetch no more while this much waits to be handled.", unit="bytes", ge=1 << 20
    )
    start: Literal["earliest", "latest"] = setting(
        "earliest", "Where a group starts in a partition that it has never read.",
        danger="with latest, what is there already is never handled, nor what a new partition has at first",
    )  # fmt: skip
    instance_id: str | None = setting(
        None, "A name that this process keeps over restarts (static membership): no rebalance while it is away for "
        "less than session.timeout.ms.",
        danger="two processes with the same name fence each other",
    )  # fmt: skip
    tries: int = setting(3, "How often a message is tried whose handler fails; then it is rejected.", ge=1, le=100)
    kills: int = setting(3, "How often a message may crash its process; then it is rejected.", ge=1, le=100)
    retry_seconds: float = setting(
        300.0, "How long a message is retried after failures that may pass: deadlocks, lock timeouts, lost sessions, "
        "statements that take longer than the deadline, and retries that a handler asks for.",
        unit="seconds", gt=0,
    )  # fmt: skip
    deadline_seconds: float = setting(
        20.0, "After this long a batch's statement is cancelled, and its messages are tried one by one; a handler that "
        "still does not return ends the process.",
        unit="seconds", gt=0, danger="keep it below health.stall_seconds, Kafka's max.poll.interval.ms, and "
        "database.idle_in_transaction_timeout_seconds, which is checked",
    )  # fmt: skip
    receipts_retention_seconds: float = setting(
        2_592_000.0, "How long receipts of handled messages are kept; 0 is for ever.", unit="seconds", ge=0,
        danger="a message that is redelivered later takes effect again; checked against the topics' retention",
    )  # fmt: skip
    replay_seconds: float = setting(86400.0, "How far back the writers may replay.", unit="seconds", ge=0)
    dead_letter_seconds: float = setting(
        604_800.0, "How long a rejected message may wait to be requeued.", unit="seconds", ge=0
    )


class Token(Section):
    """A client of the API: the hash of its token, and what it may do. The token itself is stored nowhere."""

    sha256: Annotated[str, TextLike("[0-9a-f]{64}", "a hash has 64 digits from 0 to 9 and a to f")] = setting(
        ..., "The SHA-256 of the client's token, in hexadecimal; never the token itself.",
        danger="a guessable token can be found from its hash: make one with `openssl rand`",
    )  # fmt: skip
    scopes: list[str] = setting(..., "What the client may do: scopes of routes (docs/api.md).", min_length=1)


class Api(Section):
    """The settings of `ferryman run api`."""

    host: str = setting(
        "127.0.0.1", "The address to listen on; in a container, 0.0.0.0.",
        danger="the API has no TLS, so tokens travel in the clear: put a proxy with TLS in front of it",
    )  # fmt: skip
    port: Port = setting(8080, "The port to listen on; 0 takes a free one, which the log names.")
    max_body_bytes: int = setting(65536, "A request with a larger body is refused.", unit="bytes", ge=1024, le=16 << 20)
    max_connections: int = setting(
        1000, "The most connections of clients at once; others wait until one is closed, and /readyz says so.",
        unit="connections", ge=1, le=100_000,
    )  # fmt: skip
    open: bool = setting(
        False, "Let everyone do everything without a token; no tokens may be set then.",
        danger="anyone who reaches the port can do everything that the API does",
    )  # fmt: skip
    tokens: dict[str, Token] = setting({}, "Clients by a name of yours, each with its token. At least one is needed.")


class Schemas(Section):
    """The catalogue of topics and types that messages are checked against."""

    path: str | None = setting(
        None,
        "The folder of your catalogue: `catalogue.toml`, `avro/` and `released/`. Default: none; Ferryman's own "
        "systems then use Ferryman's.",
    )


class RegistrySettings(Section):
    """The use of the schema registry at `registry_url`."""

    timeout_seconds: Seconds = setting(5.0, "How long a request may take.", unit="seconds")
    cache: str | None = setting(
        None, "A folder that caches the registry's answers, so that a process can start while it is away."
    )
    properties: dict[str, SecretStr] = setting(
        {}, "Credentials and TLS, by the names of Confluent's clients: `bearer.auth.token`, or for OAuth "
        "`bearer.auth.client.id`, `.client.secret`, `.scope` and `.issuer.endpoint.url`; `ssl.ca.location`, "
        "`ssl.certificate.location`, `ssl.key.location`, `ssl.key.password`.",
    )  # fmt: skip


class Log(Section):
    """The log of a process, on standard error."""

    format: Literal["auto", "console", "json"] = setting("auto", "`auto`: console on a terminal, JSON in a pipe.")
    level: Literal["debug", "info", "warning", "error"] = setting("info", "The least severe level that is written.")


class Health(Section):
    """The HTTP endpoint with /livez, /readyz and /metrics."""

    enabled: bool = setting(True, "Whether `ferryman run` serves the endpoint.")
    host: str = setting(
        "127.0.0.1", "The address to listen on; in a container, 0.0.0.0.",
        danger="the endpoint has no authentication: anyone who reaches it reads the metrics",
    )  # fmt: skip
    port: Port = setting(9464, "The port to listen on; 0 takes a free one, which the log names.")
    stall_seconds: Seconds = setting(
        30.0, "/livez reports a loop dead that made no progress for this long.", unit="seconds",
        danger="an orchestrator restarts a process that is reported dead: keep this above the longest batch",
    )  # fmt: skip


class ServiceSettings(Section):
    """The end of a process."""

    drain_seconds: Seconds = setting(
        20.0, "After SIGTERM, how long the work in flight may take to finish.", unit="seconds",
        danger="keep it below the orchestrator's limit (Kubernetes: 30 s), or the process is killed while it drains",
    )  # fmt: skip


class Settings(Section):
    """The whole of `ferryman.toml`. Each setting has an environment name too: `FERRYMAN_` + section + `__` + name."""

    # Systems add sections of their own: see `system.settings_model`.

    database_url: SecretStr | None = setting(
        None, "The PostgreSQL database: postgresql://user:password@host:port/name. `DATABASE_URL` is honoured.",
        danger="it holds a password; FERRYMAN_DATABASE_URL_FILE names a file that holds it instead",
    )  # fmt: skip
    registry_url: str | None = setting(
        None, "The schema registry's Confluent API (http://host:port/...), or a folder of its own (file:///...)."
    )
    database: Database = setting(Database, "How each process connects to PostgreSQL.")
    kafka: Kafka = setting(Kafka, "How each process connects to Kafka.")
    relay: Relay = setting(Relay, "How `ferryman run relay` publishes outboxes to Kafka.")
    outbox: dict[OutboxName, Outbox] = setting({}, "Tables of yours that are outboxes already, by a name of yours.")
    sagas: list[str] = setting(
        [], "Sagas of yours, as module:object: `ferryman trace` knows them, and `ferryman saga` takes their names."
    )
    http: Http = setting(Http, "How rows are sent by HTTP.")
    email: Email = setting(Email, "How mails are sent.")
    consumer: ConsumerSettings = setting(ConsumerSettings, "How consumers read messages and handle each once.")
    api: Api = setting(Api, "How `ferryman run api` answers over HTTP.")
    schemas: Schemas = setting(Schemas, "The catalogue of topics and types.")
    registry: RegistrySettings = setting(RegistrySettings, "How the schema registry is used.")
    log: Log = setting(Log, "The log of a process.")
    health: Health = setting(Health, "The HTTP endpoint with /livez, /readyz and /metrics.")
    service: ServiceSettings = setting(ServiceSettings, "How a process ends.")

    def section(self, kind: type[SectionT]) -> SectionT:
        """Return the section of this class; with its defaults if the file was loaded without the section's system."""
        return next((value for _, value in self if isinstance(value, kind)), None) or kind()


def _dotted(values: Mapping[str, Any]) -> dict[str, str]:
    """Return librdkafka's dotted names, whether TOML had them in quotes or read them as nested tables."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in leaves(values)}
