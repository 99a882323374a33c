"""How the tests read docker-compose.yml: each accessor answers one question about it."""

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
from ferryman.runtime.settings import Settings
from ferryman.runtime.sources import load

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
    """Those that are to run until they are stopped, not a command that ends by itself."""
    return [name for name, each in compose["services"].items() if each.get("restart") != "no"]


def serving(compose: Compose) -> list[str]:
    """Ours among them."""
    return [name for name in running(compose) if name in ours(compose)]


def dependencies(compose: Compose) -> list[tuple[str, str, str]]:
    """(service, what it waits for, until when)."""
    return [
        (name, other, how["condition"])
        for name, each in compose["services"].items()
        for other, how in each.get("depends_on", {}).items()
    ]


def published(compose: Compose) -> list[tuple[str, str]]:
    """(service, port), as written."""
    return [(name, port) for name, each in compose["services"].items() for port in each.get("ports", [])]


def mounts(compose: Compose, *names: str) -> list[tuple[str, str]]:
    """(what is mounted, where) of these services, or of all."""
    chosen = [compose["services"][name] for name in names or compose["services"]]
    volumes = [volume.split(":") for each in chosen for volume in each.get("volumes", [])]
    return [(volume[0], volume[1]) for volume in volumes]


def environment(compose: Compose, name: str) -> dict[str, str]:
    """A service's variables, when nobody set any of the compose file's own."""
    return {key: interpolated(value) for key, value in compose["services"][name]["environment"].items()}


def settings_of(compose: Compose, name: str) -> Settings:
    return load(environment(compose, name), Path(os.devnull)).settings


def listeners(name: str) -> dict[str, str]:
    """Kafka's listeners by name."""
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
    """As the program would, up to where it would run; raises what click raises."""
    command: click.Command | None = app
    context, rest = click.Context(app, info_name="ferryman"), list(arguments)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
        assert command
        context = command.make_context(name, rest, parent=context)
        rest = [*context._protected_args, *context.args]


def probe(command: Sequence[str], port: str) -> int:
    """What a health check of the image says of this port, where Docker sets a proxy because its user has one."""
    program, *arguments = command
    assert program == "python"
    variables = {"FERRYMAN_HEALTH__PORT": port, "http_proxy": "http://127.0.0.1:9"}
    return subprocess.run([sys.executable, *arguments], env=variables, capture_output=True, check=False).returncode


def put(document: Any, place: str, value: Any) -> None:
    """Changes one thing in a file that was read; a number in the place is an index."""
    *way, last = place.split(".")
    for key in way:
        document = document[int(key) if key.isdigit() else key]
    document[int(last) if last.isdigit() else last] = value


def seconds(duration: str) -> float:
    """Of `30s`, `1m`, `1m30s`."""
    parts = re.findall(r"(\d+)(ms|s|m|h|d)", duration)
    assert "".join(map("".join, parts)) == duration
    return sum(int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in parts)


def is_pinned(image: str) -> bool:
    """A tag that names a version, or an image that is built here."""
    return image == OURS or bool(re.search(r":v?\d[\w.-]*$", image))
