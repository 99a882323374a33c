"""The parts in containers, by testcontainers: the rung above our own servers when a Docker engine answers."""

import os
import secrets
import socket
from functools import cache
from typing import TYPE_CHECKING

from ferryman.testing import java, places
from ferryman.testing.ladder import NotHere
from ferryman.testing.part import Container

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

POSTGRES_IMAGE = "postgres:18"
KAFKA_IMAGE = f"apache/kafka:{java.version('kafka')}"
REGISTRY_IMAGE = f"apicurio/apicurio-registry:{java.version('registry')}"

_API = "1.44"


def postgres() -> Container:
    from ferryman.testing.postgres import answers

    password, port = secrets.token_hex(8), places.free_port()
    container = _container(POSTGRES_IMAGE).with_bind_ports(5432, port).with_env("POSTGRES_PASSWORD", password)
    container.with_command("postgres -c fsync=off -c max_connections=200 -c max_prepared_transactions=20")
    url = f"postgresql://postgres:{password}@{container.get_docker_client().host()}:{port}/postgres"
    return Container(container, url, lambda: answers(url))


def kafka() -> Container:
    from ferryman.testing.kafka import PROPERTIES, answers

    port = places.free_port()
    container = _container(KAFKA_IMAGE).with_bind_ports(9092, port)
    address = f"{container.get_docker_client().host()}:{port}"
    roles = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    for name, value in {**PROPERTIES, **roles}.items():
        container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    return Container(container, address, lambda: answers(address))


def registry() -> Container:
    from ferryman.testing.registry import API, answers

    port = places.free_port()
    container = _container(REGISTRY_IMAGE).with_bind_ports(8080, port)
    url = f"http://{container.get_docker_client().host()}:{port}{API}"
    return Container(container, url, lambda: answers(url))


def _container(image: str) -> "DockerContainer":
    _engine()
    from testcontainers.core.container import DockerContainer

    return DockerContainer(image)


@cache
def _engine() -> None:
    """Raises why no engine answers; asked once, because a machine does not grow one meanwhile."""
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
    """Asks a local socket first: the library would leave one open that nobody listens at."""
    scheme, _, path = host.partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                raise NotHere(f"no engine listens at {path}") from None
