"""The settings under [relay]."""

from pydantic import SecretStr

from ferryman.runtime.setting import Seconds, Section, setting


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
    pause_seconds: float = setting(
        0.002, "How long to wait for more when little came, at least.", unit="seconds", gt=0, le=1
    )
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
