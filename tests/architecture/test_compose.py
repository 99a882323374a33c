"""The compose file agrees with itself and with the code, without an engine.

A check is a function from the file to what is wrong with it. One test says that the file as it is has nothing wrong,
and `FAULTS` says, fault by fault, that the check would find it.
"""

import copy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from psycopg.conninfo import conninfo_to_dict

from ferryman.cli.app import COMMANDS, app
from ferryman.runtime.errors import FerrymanError
from ferryman.testing import docker, registry
from support.compose import (
    COMPOSE,
    COMPOSE_FILE,
    ROOT,
    Compose,
    dependencies,
    environment,
    interpolated,
    is_pinned,
    listeners,
    mounts,
    ours,
    published,
    settings_of,
    texts,
)

TESTED = {"postgres": docker.POSTGRES_IMAGE, "kafka": docker.KAFKA_IMAGE, "registry": docker.REGISTRY_IMAGE}

Check = Callable[[Compose], list[str]]


def test_the_compose_file_fits_the_official_schema() -> None:
    assert against_schema(COMPOSE_FILE) == 0


def test_a_misspelt_key_does_not_fit_the_official_schema(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("healthcheck:", "helthcheck:", 1))
    assert against_schema(wrong) == 1


def against_schema(file: Path) -> int:
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [str(program), "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def unpinned_images(compose: Compose) -> list[str]:
    return [f"{name}: {each['image']}" for name, each in compose["services"].items() if not is_pinned(each["image"])]


def images_the_tests_do_not_use(compose: Compose) -> list[str]:
    return [name for name, image in TESTED.items() if compose["services"][name]["image"] != image]


def variables_without_default(compose: Compose) -> list[str]:
    return [text for text in texts(compose) if "$" in interpolated(text).replace("$$", "")]


def clashing_ports(compose: Compose) -> list[str]:
    ports = [interpolated(port).rsplit(":", 1)[0] for _, port in published(compose)]
    return sorted({port for port in ports if ports.count(port) > 1})


def ports_open_to_others(compose: Compose) -> list[str]:
    return [f"{name}: {port}" for name, port in published(compose) if not port.startswith("127.0.0.1:")]


def refused_settings(compose: Compose) -> list[str]:
    problems = []
    for name in ours(compose):
        try:
            settings_of(compose, name)
        except FerrymanError as error:
            problems.append(f"{name}: {error}")
    return problems


def refused_commands(compose: Compose) -> list[str]:
    """Parses each command line as the program would, up to where it would run."""
    problems = []
    for name in ours(compose):
        try:
            context = click.Context(app, info_name="ferryman")
            found, command, arguments = app.resolve_command(context, list(compose["services"][name]["command"]))
            assert found in COMMANDS
            assert command
            command.make_context(found, arguments, parent=context)
        except click.ClickException as error:
            problems.append(f"{name}: {error.format_message()}")
    return problems


def unknown_dependencies(compose: Compose) -> list[str]:
    return [f"{name}: {other}" for name, other, _ in dependencies(compose) if other not in compose["services"]]


def dependencies_that_never_get_healthy(compose: Compose) -> list[str]:
    awaited = [(name, other) for name, other, condition in dependencies(compose) if condition == "service_healthy"]
    return [f"{name}: {other}" for name, other in awaited if not has_healthcheck(compose["services"].get(other, {}))]


def servers_of_unknown_health(compose: Compose) -> list[str]:
    servers = compose["services"].keys() - ours(compose)
    return [name for name in servers if not has_healthcheck(compose["services"][name])]


def has_healthcheck(service: Mapping[str, Any]) -> bool:
    return bool(service.get("healthcheck", {}).get("test"))


def missing_files(compose: Compose) -> list[str]:
    return [source for source, _ in mounts(compose) if source.startswith(".") and not (ROOT / source).exists()]


def undeclared_volumes(compose: Compose) -> list[str]:
    named = {source for source, _ in mounts(compose) if not source.startswith(".")}
    return sorted(named ^ set(compose["volumes"]))


def services_with_rights(compose: Compose) -> list[str]:
    wanted = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"], "tmpfs": ["/tmp"]}
    return [
        f"{name}: {key}"
        for name in ours(compose)
        for key, value in wanted.items()
        if compose["services"][name].get(key) != value
    ]


CHECKS: dict[str, Check] = {
    "every image is pinned": unpinned_images,
    "PostgreSQL, Kafka and the registry are those of the tests": images_the_tests_do_not_use,
    "every variable has a default": variables_without_default,
    "no two services share a port of the host": clashing_ports,
    "every port is bound to this machine": ports_open_to_others,
    "the settings accept the environment of our services": refused_settings,
    "the command line accepts the commands of our services": refused_commands,
    "every service that is waited for exists": unknown_dependencies,
    "every service that is waited for to be healthy can be": dependencies_that_never_get_healthy,
    "every server says whether it is healthy": servers_of_unknown_health,
    "every file that is mounted is in the tree": missing_files,
    "every volume that is mounted is declared, and no other": undeclared_volumes,
    "our services have no rights they do not need": services_with_rights,
}

FAULTS: Sequence[tuple[Check, str, Any]] = (
    (unpinned_images, "services.mailpit.image", "axllent/mailpit"),
    (unpinned_images, "services.mailpit.image", "axllent/mailpit:latest"),
    (images_the_tests_do_not_use, "services.kafka.image", "apache/kafka:4.0.0"),
    (variables_without_default, "services.postgres.environment.POSTGRES_PASSWORD", "${POSTGRES_PASSWORD}"),
    (clashing_ports, "services.grafana.ports", ["127.0.0.1:${PROMETHEUS_PORT:-9090}:3000"]),
    (ports_open_to_others, "services.grafana.ports", ["3000:3000"]),
    (refused_settings, "services.migrate.environment.FERRYMAN_KAFKA__BOOTSTRAP_SERVER", "kafka:19092"),
    (refused_settings, "services.migrate.environment.FERRYMAN_HEALTH__PORT", "a lot"),
    (refused_commands, "services.migrate.command", ["migrat"]),
    (refused_commands, "services.migrate.command", ["migrate", "--down"]),
    (unknown_dependencies, "services.doctor.depends_on.zookeeper", {"condition": "service_healthy"}),
    (dependencies_that_never_get_healthy, "services.postgres.healthcheck", {"disable": True}),
    (servers_of_unknown_health, "services.grafana.healthcheck", {}),
    (missing_files, "services.prometheus.volumes", ["./deploy/prometheus.yml:/etc/prometheus/prometheus.yml:ro"]),
    (undeclared_volumes, "services.prometheus.volumes", ["data:/prometheus"]),
    (services_with_rights, "services.doctor.read_only", False),
    (services_with_rights, "services.doctor.cap_drop", ["NET_RAW"]),
)


@pytest.mark.parametrize("sentence", CHECKS)
def test_in_the_compose_file(sentence: str) -> None:
    assert CHECKS[sentence](COMPOSE) == []


@pytest.mark.parametrize(("check", "place", "value"), FAULTS)
def test_each_check_of_the_compose_file_finds_its_fault(check: Check, place: str, value: Any) -> None:
    faulty = copy.deepcopy(COMPOSE)
    *way, last = place.split(".")
    inner = faulty
    for key in way:
        inner = inner[key]
    inner[last] = value
    assert check(faulty)


def test_every_check_of_the_compose_file_has_a_fault_it_finds() -> None:
    assert {check for check, _, _ in FAULTS} == set(CHECKS.values())


def test_our_services_are_told_where_the_servers_listen() -> None:
    settings = settings_of(COMPOSE, "doctor")
    assert settings.database_url
    database = conninfo_to_dict(settings.database_url.get_secret_value())
    server = COMPOSE["services"]["postgres"]["environment"]
    assert (database["host"], database["port"]) == ("postgres", "5432")
    assert (database["user"], database["dbname"]) == (server["POSTGRES_USER"], server["POSTGRES_DB"])
    assert environment(COMPOSE, "doctor")["PGPASSWORD"] == interpolated(server["POSTGRES_PASSWORD"])
    assert settings.kafka.bootstrap_servers == listeners("ADVERTISED_LISTENERS")["INTERNAL"]
    assert settings.registry_url == f"http://registry:8080{registry.API}"


def test_kafka_tells_this_machine_the_port_that_is_published_to_it() -> None:
    [port] = COMPOSE["services"]["kafka"]["ports"]
    address, _, inside = interpolated(port).rpartition(":")
    assert listeners("ADVERTISED_LISTENERS")["HOST"] == address
    assert listeners("LISTENERS")["HOST"] == f":{inside}"


def test_kafka_creates_no_topic_by_itself() -> None:
    assert environment(COMPOSE, "kafka")["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_postgres_keeps_its_data_where_version_18_does() -> None:
    assert ("postgres", "/var/lib/postgresql") in mounts(COMPOSE, "postgres")


def test_migrate_runs_once_and_ends() -> None:
    assert COMPOSE["services"]["migrate"]["restart"] == "no"
    assert COMPOSE["services"]["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
