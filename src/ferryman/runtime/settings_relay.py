"""The settings under [relay]."""

from pydantic import SecretStr

from ferryman.runtime.setting import Seconds, Section, setting


class RelaySource(Section):
    """One database whose outbox the relay publishes."""

    database_url: SecretStr = setting(
        ..., "Its database: postgresql://user:password@host:port/name.",
        danger="it holds a password; the name with _FILE behind it names a file that holds it instead",
    )  # fmt: skip
    ce_source: str | None = setting(None, "Its `ce_source` header. Default: `/` and the database's name.")
    topics: list[str] | None = setting(
        None, "The topics that its entries may be published to, by name or pattern (`orders.*`). Default: all.",
        danger="without it, whoever may append to this database may write to any topic of the cluster",
    )  # fmt: skip


def source_setting(name: str) -> str:
    """Return the setting that names the database of a source."""
    return f"relay.sources.{name}.database_url"


class RelayRetry(Section):
    """The attempts of an entry that fails for a reason of its own; outages do not count."""

    limit: int = setting(
        5, "The number of failed attempts after which an entry is FAILED.", unit="attempts", ge=1, le=1000
    )
    base_seconds: Seconds = setting(1.0, "The wait after the first failure; it doubles with each.", unit="seconds")
    cap_seconds: Seconds = setting(300.0, "The longest wait.", unit="seconds")
    offset: int = setting(1, "The offset in `base * 2 ** (attempts - offset)`.", ge=0, le=10)
    jitter: float = setting(0.1, "The largest share of a wait that is taken off at random.", ge=0, le=1)


class RelayRing(Section):
    """The retention of entries, published ones too: a replay reaches back so far."""

    retention_seconds: float = setting(
        86400.0, "How long entries are kept after they were published, at least.", unit="seconds", ge=0,
        danger="deleted entries cannot be replayed",
    )  # fmt: skip
    rotate_seconds: float = setting(
        3600.0,
        "How long new entries go to one of the eight segments, before they go to the next.",
        unit="seconds",
        gt=0,
    )
    rotate_bytes: int = setting(
        1 << 30, "The size of a segment at which new entries go to the next one.", unit="bytes", ge=1 << 16
    )
    key_retention_seconds: float = setting(
        2_592_000.0, "How long idempotency keys are remembered.", unit="seconds", gt=0,
        danger="an append that is repeated later is published again",
    )  # fmt: skip


class Relay(Section):
    """The settings of `ferryman run relay`, which publishes outboxes to Kafka."""

    sources: dict[str, RelaySource] = setting(
        {}, "Databases by a name of your choice, each with its own outbox. Default: one, `database_url`."
    )
    ce_source: str | None = setting(None, "The `ce_source` header. Default: `/` and the database's name.")
    workers: int = setting(2, "Workers for each source: one reads while another publishes.", ge=1, le=8)
    batch_entries: int = setting(1000, "The most entries in one read.", unit="entries", ge=1, le=10000)
    tenure_seconds: float = setting(
        0.05, "How long a worker publishes from its lanes before it records how far it came.", unit="seconds",
        gt=0, le=10, danger="after a crash, up to this much is published again, with the same ids",
    )  # fmt: skip
    pause_seconds: float = setting(
        0.002, "The shortest wait for more entries when few came.", unit="seconds", gt=0, le=1
    )
    idle_seconds: float = setting(
        0.075, "How often to look for new entries while nothing comes: one cheap statement, no NOTIFY.", unit="seconds",
        gt=0, le=60, danger="the first entry after a quiet time waits up to this long",
    )  # fmt: skip
    deadline_seconds: float = setting(
        10.0, "An entry that Kafka did not acknowledge within this time is unknown, and is sent again.", unit="seconds",
        ge=2, le=600,
        danger="a claim stays open for this long while the broker is silent; keep it below service.drain_seconds",
    )  # fmt: skip
    retry: RelayRetry = setting(RelayRetry, "How often an entry is tried that fails for a reason of its own.")
    max_outage_seconds: float | None = setting(
        None, "How long entries wait for a topic that refuses everything before they are FAILED. Default: for ever.",
        unit="seconds", gt=0,
    )  # fmt: skip
    unordered_topics: list[str] = setting(
        [], "Topics in which a failing entry does not hold back later entries of its key.",
        danger="their readers see entries of one key out of order",
    )  # fmt: skip
    compacted_topics: list[str] = setting(
        [], "Topics that may be published to although their cleanup.policy is compact.",
        danger="a late duplicate overwrites a newer value until the key's next message",
    )  # fmt: skip
    backlog_seconds: Seconds = setting(15.0, "How often the metrics of the backlog are measured.", unit="seconds")
    ring: RelayRing = setting(RelayRing, "How long entries are kept.")

    def topics_of(self, source: str) -> list[str] | None:
        """Return the patterns of the topics that a source may publish to, None for all."""
        return self.sources[source].topics if source in self.sources else None
