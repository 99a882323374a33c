"""The process behind `BuiltInKafka`: holds librdkafka's mock cluster, and writes its address into a file."""

import signal
import sys
from pathlib import Path

from confluent_kafka import Producer


def main(address_file: Path) -> None:
    holder = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = holder.list_topics(timeout=10).brokers.values()
    part = address_file.with_suffix(".part")
    part.write_text(",".join(f"{broker.host}:{broker.port}" for broker in brokers))
    part.rename(address_file)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(Path(sys.argv[1]))
