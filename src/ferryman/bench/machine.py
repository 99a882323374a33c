"""Where it was measured."""

import os
import platform
from pathlib import Path
from typing import Any

import confluent_kafka
import fastavro
import psutil
import psycopg

_SERVER = """\
-- bench.server
SELECT name, current_setting(name) FROM pg_settings
WHERE name IN ('server_version', 'shared_buffers', 'fsync', 'full_page_writes', 'synchronous_commit', 'wal_level',
               'data_checksums', 'max_wal_size', 'autovacuum')
"""


def describe(database_url: str, kafka: str) -> dict[str, Any]:
    """The machine, and the versions of everything that was part of it; no URL means no servers."""
    servers = {}
    if database_url:
        with psycopg.connect(database_url) as connection:
            server: dict[str, str] = dict(connection.execute(_SERVER).fetchall())
        servers = {
            "postgresql": server.pop("server_version"),
            "postgresql_settings": dict(sorted(server.items())),
            "kafka": kafka,
        }
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu(),
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "system": f"{platform.system()} {platform.release()}",
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        **servers,
        "librdkafka": confluent_kafka.libversion()[0],
        "confluent_kafka": confluent_kafka.__version__,
        "fastavro": fastavro.__version__,
        "psycopg": psycopg.__version__,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
