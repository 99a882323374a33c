"""Prometheus metrics of this process, in one registry; `docs/metrics.md` is generated from it."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from ferryman.runtime.version import __version__

REGISTRY = CollectorRegistry(auto_describe=True)

for _collector in (ProcessCollector, PlatformCollector, GCCollector):
    _collector(registry=REGISTRY)


class Named:
    """A maker of one room's metrics: they share a prefix, default labels and default buckets."""

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
        """Create a histogram, of seconds unless other buckets are given."""
        chosen = buckets or self._seconds
        return Histogram(self._prefix + name, text, labels or self._labels, buckets=chosen, registry=REGISTRY)


_PROCESS = Named("ferryman_", ["service"], ())
_PROCESS.gauge("build_info", "The running version; always 1.", ["version"]).labels(__version__).set(1)
READY = _PROCESS.gauge("ready", "1 when the service is ready, 0 when not (/readyz says why).")
PROGRESS = _PROCESS.gauge("last_progress_timestamp_seconds", "When the service's loop last made progress.")
