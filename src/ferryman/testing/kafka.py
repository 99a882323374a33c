"""Find or start Kafka: a URL, Docker, a KRaft broker on this machine's Java, or librdkafka's built-in broker."""

import os
import subprocess
import sys
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping

from ferryman.testing import docker, java, places
from ferryman.testing.parts import Climb, Local, NotHere, Part, Reach, Rung, climb, given, started
from ferryman.testing.process import PartFailed

REQUIRE_REAL = "REQUIRE_REAL_KAFKA"
OLDEST_JAVA = 17

# Settings of one broker for many small tests: groups form at once, a killed consumer is noticed after 1.5 s, and
# internal topics need no replicas.
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
    """An Apache Kafka broker in KRaft mode: alone in its cluster, or the second one `beside` another.

    With `proxy_port` it has another listener, which tells clients to connect through a proxy on that port.
    """

    def __init__(self, properties: Mapping[str, str] | None = None, *, proxy_port: int | None = None,
                 beside: "LocalKafka | None" = None) -> None:  # fmt: skip
        self._java = java.find(OLDEST_JAVA)
        self._jars = java.artifacts("kafka")
        self.folder = places.scratch("kafka")
        self.port = places.free_port()
        self.url = f"127.0.0.1:{self.port}"
        self.controller: str = beside.controller if beside else f"127.0.0.1:{places.free_port()}"
        self.cluster: str = beside.cluster if beside else urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.behind_proxy = places.free_port() if proxy_port else None
        self._file = self.folder / "server.properties"
        settings = PROPERTIES | self._listeners(proxy_port, leads=beside is None) | dict(properties or {})
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._format("--standalone" if beside is None else "--no-initial-controllers")
        super().__init__(
            f"Apache Kafka {java.version('kafka')}",
            self._run_by_java("kafka.Kafka", str(self._file), heap="512m"),
            self.folder / "broker.log",
            ready=lambda: answers(self.url),
        )

    def _listeners(self, proxy_port: int | None, *, leads: bool = True) -> dict[str, str]:
        own = {"PLAINTEXT": f"127.0.0.1:{self.port}"}
        listeners = own | ({"CONTROLLER": self.controller} if leads else {})
        advertised = dict(own)
        if proxy_port:
            listeners["PROXIED"] = f"127.0.0.1:{self.behind_proxy}"
            advertised["PROXIED"] = f"127.0.0.1:{proxy_port}"
        return {
            "process.roles": "broker,controller" if leads else "broker",
            "node.id": "1" if leads else "2",
            "controller.quorum.bootstrap.servers": self.controller,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in {"CONTROLLER", *listeners}),
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
            "log.dirs": str(self.folder / "data"),
        }

    def _format(self, role: str) -> None:
        arguments = ("format", role, "-t", self.cluster.replace("-", "A"), "-c", str(self._file))
        command = self._run_by_java("kafka.tools.StorageTool", *arguments, heap="128m")
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
        if done.returncode:
            raise PartFailed(f"Kafka's storage could not be formatted: {(done.stderr or done.stdout).strip()[-500:]}")

    def _run_by_java(self, main: str, *arguments: str, heap: str) -> list[str]:
        # With one compiler tier and a serial collector it starts in half the time, and uses little beside the tests.
        flags = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
        return [str(self._java), *flags, "-cp", f"{self._jars}/*", main, *arguments]


class BuiltInKafka(Local):
    """The broker of librdkafka in a process of its own: the real protocol, in memory, without CreateTopics."""

    def __init__(self) -> None:
        self.folder = places.scratch("kafka")
        self._address = self.folder / "address"
        super().__init__(
            "librdkafka's built-in broker",
            [sys.executable, "-m", "ferryman.testing.builtin_broker", str(self._address)],
            self.folder / "broker.log",
            ready=self._address.exists,
        )

    def start(self) -> None:
        """Start it. After a restart its topics are gone and its port has changed: it keeps everything in memory."""
        self._address.unlink(missing_ok=True)
        super().start()
        self.url = self._address.read_text()


def find(url: str | None = None, *, reach: Reach = "anywhere") -> tuple[Part, Climb]:
    """Return a running broker of the first kind that is available."""
    rungs = [
        Rung("given URL", lambda: given(url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"), "anywhere"),
        Rung("Docker", lambda: docker.kafka(PROPERTIES, answers), "anywhere"),
        Rung(f"Apache Kafka {java.version('kafka')} on this machine's Java", lambda: started(LocalKafka()), "machine"),
        Rung("librdkafka's built-in broker", _built_in, "wheels"),
    ]
    return climb("Kafka", rungs, reach)


def answers(address: str) -> bool:
    """Return True if the cluster lists its brokers: then it also has a controller and accepts topics."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        return bool(AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def _built_in() -> BuiltInKafka:
    if os.environ.get(REQUIRE_REAL):
        raise NotHere(f"{REQUIRE_REAL} is set and this is not a real broker")
    return started(BuiltInKafka())
