"""Start the servers in containers with testcontainers, if a Docker engine answers."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from functools import cache

from ferryman.testing import java, places
from ferryman.testing.parts import NotHere
from ferryman.testing.process import PartFailed

POSTGRES_IMAGE = "postgres:18"
KAFKA_IMAGE = f"apache/kafka:{java.version('kafka')}"
REGISTRY_IMAGE = f"apicurio/apicurio-registry:{java.version('registry')}"

_API = "1.44"
_START_SECONDS = 120

Answers = Callable[[str], bool]
"""A function that returns True if the server at a URL answers."""


class Container:
    """A server in a container that answers at `url`: a text with the place of its host and port."""

    def __init__(
        self, image: str, port: int, url: str, answers: Answers,
        *, environment: Mapping[str, str], command: str | None = None,
    ) -> None:  # fmt: skip
        _require_engine()
        from testcontainers.core.container import DockerContainer

        bound = places.free_port()
        self._container = DockerContainer(image).with_bind_ports(port, bound)
        address = f"{self._container.get_docker_client().host()}:{bound}"
        for name, value in environment.items():
            self._container.with_env(name, value.format(address=address))
        if command:
            self._container.with_command(command)
        self.url = url.format(address=address)
        self._container.start()
        deadline = time.monotonic() + _START_SECONDS
        while not answers(self.url):
            if time.monotonic() > deadline:
                raise PartFailed(f"the container {image} did not answer within {_START_SECONDS} s")
            time.sleep(0.1)

    def close(self) -> None:
        """Stop the container, and remove it."""
        self._container.stop()


def postgres(answers: Answers) -> Container:
    """Start a PostgreSQL."""
    password = secrets.token_hex(8)
    return Container(
        POSTGRES_IMAGE, 5432, f"postgresql://postgres:{password}@{{address}}/postgres", answers,
        environment={"POSTGRES_PASSWORD": password},
        command="postgres -c fsync=off -c max_connections=200 -c max_prepared_transactions=20",
    )  # fmt: skip


def kafka(properties: Mapping[str, str], answers: Answers) -> Container:
    """Start a Kafka broker."""
    roles = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": "PLAINTEXT://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    environment = {"KAFKA_" + name.upper().replace(".", "_"): value for name, value in {**properties, **roles}.items()}
    return Container(KAFKA_IMAGE, 9092, "{address}", answers, environment=environment)


def registry(api: str, answers: Answers) -> Container:
    """Start a schema registry."""
    return Container(REGISTRY_IMAGE, 8080, f"http://{{address}}{api}", answers, environment={})


@cache
def _require_engine() -> None:
    """Raise `NotHere` if no engine answers. Ask only once: an engine rarely appears during a run."""
    try:
        import docker
    except ImportError:
        raise NotHere("testcontainers is not installed: pip install 'ferryman[testing]'") from None
    _connect(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    client = docker.from_env(timeout=3, version=_API)
    try:
        client.ping()
    except (docker.errors.DockerException, OSError):
        raise NotHere("no engine answers") from None
    finally:
        client.close()


def _connect(host: str) -> None:
    """Raise `NotHere` if nobody listens at a local socket: the library would leave such a socket open."""
    scheme, _, path = host.partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                raise NotHere(f"no engine listens at {path}") from None
