"""Read docker-compose.yml: each function answers one question about it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from ruamel.yaml import YAML

from ferryman.cli.app import app
from ferryman.cli.wiring import load_settings
from ferryman.runtime.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
OURS = "ferryman:local"

Compose = dict[str, Any]


def read_yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text())


COMPOSE: Compose = read_yaml(COMPOSE_FILE)


def ours(compose: Compose) -> list[str]:
    return [name for name, each in compose["services"].items() if each["image"] == OURS]


def running(compose: Compose) -> list[str]:
    """Return the services that run until they are stopped; others are commands that end by themselves."""
    return [name for name, each in compose["services"].items() if each.get("restart") != "no"]


def serving(compose: Compose) -> list[str]:
    """Return our own services that run until they are stopped."""
    return [name for name in running(compose) if name in ours(compose)]


def dependencies(compose: Compose) -> list[tuple[str, str, str]]:
    """Return each service, the service that it waits for, and the condition."""
    return [
        (name, other, how["condition"])
        for name, each in compose["services"].items()
        for other, how in each.get("depends_on", {}).items()
    ]


def published(compose: Compose) -> list[tuple[str, str]]:
    """Return each service with each of its ports, as written."""
    return [(name, port) for name, each in compose["services"].items() for port in each.get("ports", [])]


def mounts(compose: Compose, *names: str) -> list[tuple[str, str]]:
    """Return the source and the target of every mount of these services, or of all."""
    chosen = [compose["services"][name] for name in names or compose["services"]]
    volumes = [volume.split(":") for each in chosen for volume in each.get("volumes", [])]
    return [(volume[0], volume[1]) for volume in volumes]


def environment(compose: Compose, name: str) -> dict[str, str]:
    """Return the variables of a service, with the defaults of the compose file."""
    return {key: interpolated(value) for key, value in compose["services"][name]["environment"].items()}


def settings_of(compose: Compose, name: str) -> Settings:
    return load_settings(environment(compose, name), Path(os.devnull)).settings


def listeners(name: str) -> dict[str, str]:
    """Return the addresses of Kafka's listeners by their names."""
    found = environment(COMPOSE, "kafka")[f"KAFKA_{name}"].split(",")
    return {listener: address for listener, _, address in (each.partition("://") for each in found)}


def interpolated(text: str) -> str:
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for value in node.values():
            yield from texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from texts(value)
    elif isinstance(node, str):
        yield node


def parse_command_line(arguments: Sequence[str]) -> None:
    """Parse a command line as the program does, without running it. Errors are those of click."""
    command: click.Command | None = app
    context, rest = click.Context(app, info_name="ferryman"), list(arguments)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
        assert command
        context = command.make_context(name, rest, parent=context)
        rest = [*context._protected_args, *context.args]


def probe(command: Sequence[str], port: str) -> int:
    """Return the exit code of an image's health check for this port, with the proxy variables that Docker may set."""
    program, *arguments = command
    assert program == "python"
    variables = {"FERRYMAN_HEALTH__PORT": port, "http_proxy": "http://127.0.0.1:9"}
    return subprocess.run([sys.executable, *arguments], env=variables, capture_output=True, check=False).returncode


def put(document: Any, place: str, value: Any) -> None:
    """Change one value in a parsed file. A number in the place is an index."""
    *way, last = place.split(".")
    for key in way:
        document = document[int(key) if key.isdigit() else key]
    document[int(last) if last.isdigit() else last] = value


def seconds(duration: str) -> float:
    """Return the seconds of a duration such as 30s or 1m30s."""
    parts = re.findall(r"(\d+)(ms|s|m|h|d)", duration)
    assert "".join(map("".join, parts)) == duration
    return sum(int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in parts)


def is_pinned(image: str) -> bool:
    """Return True if the tag names a version, or the image is built here."""
    return image == OURS or bool(re.search(r":v?\d[\w.-]*$", image))
