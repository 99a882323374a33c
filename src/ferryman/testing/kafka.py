"""Apache Kafka as a part: a URL, Docker, a KRaft broker on this machine's Java, or librdkafka's built-in broker."""

import os
import subprocess
import sys
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping

from ferryman.testing import docker, java, places
from ferryman.testing.ladder import Climb, NotHere, PartFailed, Rung, climb, given
from ferryman.testing.part import Given, Local, Part, started
from ferryman.testing.process import Process

REQUIRE_REAL = "REQUIRE_REAL_KAFKA"
OLDEST_JAVA = 17

# One broker for many small tests: groups form at once, a consumer that was killed is missed after 1.5 s, and topics
# of internal use need no replicas.
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "num.partitions": "1",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
}


class LocalKafka(Local):
    """A broker of our own in KRaft mode, alone in its cluster.

    With `proxy_port` it has one more listener, which says that it is to be reached through a proxy on that port.
    """

    def __init__(self, properties: Mapping[str, str] | None = None, *, proxy_port: int | None = None) -> None:
        self._java = java.find(OLDEST_JAVA)
        self._jars = java.artifacts("kafka")
        super().__init__("kafka")
        self.port = places.free_port()
        self.url = f"127.0.0.1:{self.port}"
        self.behind_proxy = places.free_port() if proxy_port else None
        self._file = self.folder / "server.properties"
        self._file.write_text(_lines(PROPERTIES | self._listeners(proxy_port) | dict(properties or {})))
        self._format()
        self.process = Process(
            f"Apache Kafka {java.version('kafka')}",
            self._command("kafka.Kafka", str(self._file), heap="512m"),
            self.folder / "broker.log",
            ready=lambda: answers(self.url),
        )

    def _listeners(self, proxy_port: int | None) -> dict[str, str]:
        controller = places.free_port()
        own = {"PLAINTEXT": f"127.0.0.1:{self.port}"}
        listeners = own | {"CONTROLLER": f"127.0.0.1:{controller}"}
        advertised = dict(own)
        if proxy_port:
            listeners["PROXIED"] = f"127.0.0.1:{self.behind_proxy}"
            advertised["PROXIED"] = f"127.0.0.1:{proxy_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
            "log.dirs": str(self.folder / "data"),
        }

    def _format(self) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        command = self._command(
            "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(self._file), heap="128m"
        )
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
        if done.returncode:
            raise PartFailed(f"Kafka's storage could not be formatted: {(done.stderr or done.stdout).strip()[-500:]}")

    def _command(self, main: str, *arguments: str, heap: str) -> list[str]:
        # One core's worth of compiler and a serial collector: up in half the time, and small beside what is tested.
        flags = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
        return [str(self._java), *flags, "-cp", f"{self._jars}/*", main, *arguments]


class BuiltInKafka(Local):
    """librdkafka's own broker in a process of its own: the real protocol on loopback, in memory, no CreateTopics."""

    def __init__(self) -> None:
        super().__init__("kafka")
        self._address = self.folder / "address"
        self.process = Process(
            "librdkafka's built-in broker",
            [sys.executable, "-m", "ferryman.testing.builtin_broker", str(self._address)],
            self.folder / "broker.log",
            ready=self._address.exists,
        )

    def start(self) -> None:
        """Its topics are gone and its port is another after a restart: it keeps everything in memory."""
        self._address.unlink(missing_ok=True)
        super().start()
        self.url = self._address.read_text()


def find(url: str | None = None, *, embedded: bool = False) -> tuple[Part, Climb]:
    """A running broker from the first rung that holds; `embedded` looks at nothing outside this machine's files."""
    outside: list[Rung[Part]] = [
        Rung("given URL", lambda: Given(given(url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"))),
        Rung("Docker", docker.kafka),
    ]
    own: list[Rung[Part]] = [
        Rung(f"Apache Kafka {java.version('kafka')} on this machine's Java", lambda: started(LocalKafka())),
        Rung("librdkafka's built-in broker", _built_in),
    ]
    return climb("Kafka", own if embedded else outside + own)


def answers(address: str) -> bool:
    """Whether the cluster answers a question about itself: then it also has a controller and takes topics."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        return bool(AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def _built_in() -> BuiltInKafka:
    if os.environ.get(REQUIRE_REAL):
        raise NotHere(f"{REQUIRE_REAL} is set, and this is not a real broker")
    return started(BuiltInKafka())


def _lines(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())
