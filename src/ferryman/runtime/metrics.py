"""Prometheus metrics: every process's own, in one registry; `docs/metrics.md` is generated from here."""

from prometheus_client import CollectorRegistry, Gauge, generate_latest
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


def exposition() -> bytes:
    """What /metrics answers."""
    return generate_latest(REGISTRY)
