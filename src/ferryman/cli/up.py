"""`ferryman up`"""

import subprocess
import threading

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, say
from ferryman.runtime import signals
from ferryman.runtime.errors import Misconfigured, env_name


@click.command("up", context_settings={"ignore_unknown_options": True})
@click.option("--embedded", is_flag=True, help="Only what this machine and the wheels have: no Docker.")
@click.option(
    "--registry/--no-registry", default=True, show_default=True, help="Whether a schema registry comes up too."
)
@json_option
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM...]")
def command(embedded: bool, registry: bool, as_json: bool, program: tuple[str, ...]) -> int:
    """Bring up PostgreSQL (migrated), Kafka and a schema registry on this machine, until Ctrl-C.

    Their data is temporary and goes away with them. With a PROGRAM, it runs with the servers in its environment, and
    they go away when it ends; your ferryman.toml counts for it, but for the databases and the brokers that it names:

    \b
      ferryman up --embedded
      ferryman up --embedded -- ferryman doctor
    """
    stop = threading.Event()
    with signals.heard(stop.set), wiring.embedded().open_house(embedded=embedded, registry_too=registry) as rooms:
        for climb in rooms.climbs:
            say(str(climb))
        variables = alone(rooms.environment)
        if program:
            return _run(program, variables, stop)
        if as_json:
            print_json(variables)
        else:
            click.echo("\n".join(f"export {name}={value}" for name, value in variables.items()))
            say("ready: Ctrl-C stops everything")
        stop.wait()
    return 0


def alone(variables: dict[str, str]) -> dict[str, str]:
    """With the one database for every one that a file may name: a relay of these servers publishes no other outbox."""
    url = variables[env_name("database_url")]
    return {**variables, env_name("relay.sources"): "{}", env_name("payments.wallet_database_url"): url}


def _run(program: tuple[str, ...], variables: dict[str, str], stop: threading.Event) -> int:
    try:
        child = subprocess.Popen(program, env=dict(wiring.environment(**variables)))
    except OSError as error:
        raise Misconfigured(
            f"cannot run {program[0]}: {error.strerror}", remedy="correct the name behind --"
        ) from error
    while child.poll() is None:
        if stop.wait(0.05):
            child.terminate()
            child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode
