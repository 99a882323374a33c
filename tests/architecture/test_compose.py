"""The compose file agrees with itself and with the code. No engine is needed.

A check is a function that returns the problems of a compose file. The real file has none, and each entry of `FAULTS`
shows that a check finds its fault.
"""

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from psycopg.conninfo import conninfo_to_dict

from ferryman.cli import wiring
from ferryman.runtime import health
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Health
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
    parse_command_line,
    probe,
    published,
    put,
    running,
    seconds,
    serving,
    settings_of,
    texts,
)

TESTED = {"postgres": docker.POSTGRES_IMAGE, "kafka": docker.KAFKA_IMAGE, "registry": docker.REGISTRY_IMAGE}

Check = Callable[[Compose], list[str]]


def test_compose_file_fits_the_official_schema() -> None:
    assert against_schema(COMPOSE_FILE) == 0


def test_misspelt_key_does_not_fit_the_official_schema(tmp_path: Path) -> None:
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
    """Parse each command line as the program does, without running it."""
    problems = []
    for name in ours(compose):
        try:
            parse_command_line(compose["services"][name]["command"])
        except click.ClickException as error:
            problems.append(f"{name}: {error.format_message()}")
    return problems


def services_that_cannot_be_made(compose: Compose) -> list[str]:
    """Create the services as `ferryman run` does, before it connects to anything."""
    problems = []
    for name in serving(compose):
        run, *named = compose["services"][name]["command"]
        try:
            assert run == "run"
            wiring.services(named, wiring.with_outboxes(settings_of(compose, name)))
        except FerrymanError as error:
            problems.append(f"{name}: {error}")
    return problems


def health_that_no_other_container_reaches(compose: Compose) -> list[str]:
    anywhere = "0.0.0.0"  # noqa: S104 - in the container
    return [name for name in serving(compose) if settings_of(compose, name).health.host != anywhere]


def services_that_are_killed_while_they_drain(compose: Compose) -> list[str]:
    """Compare the time that Docker waits, ten seconds by default, with the time that a service may drain."""
    waits = {name: seconds(compose["services"][name].get("stop_grace_period", "10s")) for name in serving(compose)}
    return [name for name, wait in waits.items() if wait <= settings_of(compose, name).service.drain_seconds]


def services_that_cannot_have_replicas(compose: Compose) -> list[str]:
    fixed = {"container_name", "ports"}
    return [name for name in serving(compose) if fixed & compose["services"][name].keys()]


def services_that_start_too_early(compose: Compose) -> list[str]:
    schema = ("migrate", "service_completed_successfully")
    ways = {"dispatcher": [], "mailer": ["mailpit"], "webhook-worker": ["registry"], "notifier": ["kafka", "mailpit"]}
    return [
        name
        for name in serving(compose)
        if {schema, *((way, "service_healthy") for way in ways.get(name, ["kafka"]))}
        - {each[1:] for each in dependencies(compose) if each[0] == name}
    ]


def services_that_stay_away(compose: Compose) -> list[str]:
    return [name for name in running(compose) if compose["services"][name].get("restart") != "unless-stopped"]


def unknown_dependencies(compose: Compose) -> list[str]:
    return [f"{name}: {other}" for name, other, _ in dependencies(compose) if other not in compose["services"]]


def dependencies_that_never_get_healthy(compose: Compose) -> list[str]:
    awaited = [(name, other) for name, other, condition in dependencies(compose) if condition == "service_healthy"]
    return [f"{name}: {other}" for name, other in awaited if not has_healthcheck(compose["services"].get(other, {}))]


def servers_of_unknown_health(compose: Compose) -> list[str]:
    return [name for name in running(compose) if not has_healthcheck(compose["services"][name])]


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
    "PostgreSQL, Kafka and the registry have the versions of the tests": images_the_tests_do_not_use,
    "every variable has a default": variables_without_default,
    "no two services share a port of the host": clashing_ports,
    "every published port is bound to loopback": ports_open_to_others,
    "the settings accept the environment of our services": refused_settings,
    "the command line accepts the commands of our services": refused_commands,
    "the services of our containers can be created": services_that_cannot_be_made,
    "other containers can reach the health endpoints of our services": health_that_no_other_container_reaches,
    "our services have enough time to drain": services_that_are_killed_while_they_drain,
    "our services can have replicas": services_that_cannot_have_replicas,
    "our services wait for the schema and for where they send": services_that_start_too_early,
    "every running service is restarted after a failure": services_that_stay_away,
    "every dependency exists": unknown_dependencies,
    "every dependency that must be healthy has a health check": dependencies_that_never_get_healthy,
    "every running service has a health check": servers_of_unknown_health,
    "every mounted file is in the tree": missing_files,
    "exactly the mounted volumes are declared": undeclared_volumes,
    "our services have no unnecessary privileges": services_with_rights,
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
    (refused_settings, "services.relay.environment.FERRYMAN_RELAY__WORKERS", "0"),
    (refused_commands, "services.relay.command", ["run"]),
    (services_that_cannot_be_made, "services.relay.command", ["run", "relais"]),
    (services_that_cannot_be_made, "services.relay.environment.FERRYMAN_DATABASE_URL", ""),
    (health_that_no_other_container_reaches, "services.relay.environment.FERRYMAN_HEALTH__HOST", "127.0.0.1"),
    (services_that_are_killed_while_they_drain, "services.relay.stop_grace_period", "20s"),
    (services_that_are_killed_while_they_drain, "services.relay.environment.FERRYMAN_SERVICE__DRAIN_SECONDS", "40"),
    (services_that_cannot_have_replicas, "services.relay.container_name", "relay"),
    (services_that_cannot_have_replicas, "services.relay.ports", ["127.0.0.1:9464:9464"]),
    (services_that_start_too_early, "services.relay.depends_on.migrate.condition", "service_started"),
    (services_that_start_too_early, "services.relay.depends_on", {}),
    (services_that_start_too_early, "services.dispatcher.depends_on", {}),
    (services_that_start_too_early, "services.mailer.depends_on.mailpit.condition", "service_started"),
    (services_that_cannot_be_made, "services.mailer.environment.FERRYMAN_EMAIL__PROVIDER", "smpt"),
    (services_that_cannot_be_made, "services.mailer.environment.FERRYMAN_EMAIL__SENDER", "nobody"),
    (services_that_cannot_be_made, "services.dispatcher.environment.FERRYMAN_RUNNER__URL", ""),
    (services_that_cannot_be_made, "services.dispatcher.environment.FERRYMAN_HTTP__TIMEOUT_SECONDS", "25"),
    (services_that_stay_away, "services.relay.restart", "on-failure"),
    (unknown_dependencies, "services.doctor.depends_on.zookeeper", {"condition": "service_healthy"}),
    (dependencies_that_never_get_healthy, "services.postgres.healthcheck", {"disable": True}),
    (servers_of_unknown_health, "services.grafana.healthcheck", {}),
    (servers_of_unknown_health, "services.relay.healthcheck", {"disable": True}),
    (missing_files, "services.prometheus.volumes", ["./deploy/prometheus.yml:/etc/prometheus/prometheus.yml:ro"]),
    (undeclared_volumes, "services.prometheus.volumes", ["data:/prometheus"]),
    (services_with_rights, "services.doctor.read_only", False),
    (services_with_rights, "services.doctor.cap_drop", ["NET_RAW"]),
)


@pytest.mark.parametrize("sentence", CHECKS)
def test_compose_file(sentence: str) -> None:
    assert CHECKS[sentence](COMPOSE) == []


@pytest.mark.parametrize(("check", "place", "value"), FAULTS)
def test_compose_check_finds_its_fault(check: Check, place: str, value: Any) -> None:
    faulty = copy.deepcopy(COMPOSE)
    put(faulty, place, value)
    assert check(faulty)


def test_every_compose_check_has_a_fault() -> None:
    assert {check for check, _, _ in FAULTS} == set(CHECKS.values())


@pytest.mark.parametrize(
    "name",
    [
        "dispatcher",
        "doctor",
        "mailer",
        "notifier",
        "relay",
        "reviews",
        "webhook-endpoints",
        "webhook-worker",
        "webhooks",
    ],
)
def test_our_services_know_the_addresses_of_the_servers(name: str) -> None:
    settings = settings_of(COMPOSE, name)
    assert settings.database_url
    database = conninfo_to_dict(settings.database_url.get_secret_value())
    server = COMPOSE["services"]["postgres"]["environment"]
    assert (database["host"], database["port"]) == ("postgres", "5432")
    logins = re.findall(r"CREATE ROLE (\w+) LOGIN", (ROOT / "deploy/postgres/logins.sh").read_text())
    assert database["dbname"] == server["POSTGRES_DB"]
    assert database["user"] in ([server["POSTGRES_USER"]] if name == "migrate" else logins)
    assert environment(COMPOSE, name)["PGPASSWORD"] == interpolated(server["POSTGRES_PASSWORD"])
    assert settings.kafka.bootstrap_servers == listeners("ADVERTISED_LISTENERS")["INTERNAL"]
    assert settings.registry_url == f"http://registry:8080{registry.API}"


def test_mailer_sends_to_mailpit_which_shows_its_mails_on_this_machine() -> None:
    smtp = settings_of(COMPOSE, "mailer").email.smtp
    inside = [interpolated(port).rpartition(":")[2] for port in COMPOSE["services"]["mailpit"]["ports"]]
    assert (smtp.host, str(smtp.port) in inside) == ("mailpit", True)
    assert "127.0.0.1:8025:8025" in map(interpolated, COMPOSE["services"]["mailpit"]["ports"])


def test_kafka_advertises_its_published_port() -> None:
    [port] = COMPOSE["services"]["kafka"]["ports"]
    address, _, inside = interpolated(port).rpartition(":")
    assert listeners("ADVERTISED_LISTENERS")["HOST"] == address
    assert listeners("LISTENERS")["HOST"] == f":{inside}"


def test_kafka_does_not_create_topics_by_itself() -> None:
    assert environment(COMPOSE, "kafka")["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_postgres_volume_is_the_data_folder_of_version_18() -> None:
    assert ("postgres", "/var/lib/postgresql") in mounts(COMPOSE, "postgres")


def test_migrate_runs_once() -> None:
    assert COMPOSE["services"]["migrate"]["restart"] == "no"
    assert COMPOSE["services"]["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


@pytest.mark.parametrize(("ready", "code"), [(True, 0), (False, 1)])
def test_health_check_of_the_relay_follows_readyz(ready: bool, code: int) -> None:
    life = Life("relay")
    if ready:
        life.ready()
    with health.endpoint(Health(port=0), [life]) as url:
        assert url
        assert probe(health_check(), url.rpartition(":")[2]) == code


def test_health_check_of_the_relay_fails_if_nobody_listens() -> None:
    with health.endpoint(Health(port=0), []) as url:
        assert url
    assert probe(health_check(), url.rpartition(":")[2]) == 1


def health_check() -> list[str]:
    kind, *command = COMPOSE["services"]["relay"]["healthcheck"]["test"]
    assert kind == "CMD"
    return [part.replace("$$", "$") for part in command]
