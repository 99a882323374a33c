"""Prometheus metrics: every process's own, in one registry; `docs/metrics.md` is generated from here."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from ferryman.runtime.version import __version__

REGISTRY = CollectorRegistry(auto_describe=True)
CONTENT_TYPE = CONTENT_TYPE_LATEST

ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

BUILD = Gauge("ferryman_build_info", "The running version; always 1.", ["version"], registry=REGISTRY)
BUILD.labels(__version__).set(1)
READY = Gauge(
    "ferryman_ready", "1 when the service is ready, 0 when not (/readyz says why).", ["service"], registry=REGISTRY
)
PROGRESS = Gauge(
    "ferryman_last_progress_timestamp_seconds",
    "When the service's loop last made progress.",
    ["service"],
    registry=REGISTRY,
)


class Named:
    """Makes the metrics of one room: their names begin alike, and they have the same labels where none are given."""

    def __init__(self, prefix: str, labels: Sequence[str], seconds: Sequence[float]) -> None:
        self._prefix = prefix
        self._labels = labels
        self._seconds = seconds

    def counter(self, name: str, text: str, labels: Sequence[str] | None = None) -> Counter:
        return Counter(self._prefix + name, text, labels or self._labels, registry=REGISTRY)

    def gauge(self, name: str, text: str, labels: Sequence[str] | None = None) -> Gauge:
        return Gauge(self._prefix + name, text, labels or self._labels, registry=REGISTRY)

    def histogram(
        self, name: str, text: str, labels: Sequence[str] | None = None, buckets: Sequence[float] = ()
    ) -> Histogram:
        """Of seconds, where nothing else is said."""
        chosen = buckets or self._seconds
        return Histogram(self._prefix + name, text, labels or self._labels, buckets=chosen, registry=REGISTRY)


def exposition() -> bytes:
    """What /metrics answers."""
    return generate_latest(REGISTRY)
