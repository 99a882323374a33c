"""`ferryman up`"""

import subprocess
import threading
from collections.abc import Collection, Sequence

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, say, systems_option, wheels_option
from ferryman.migrations.chains import ENGINE
from ferryman.runtime import signals
from ferryman.runtime.errors import Misconfigured, env_name
from ferryman.runtime.system import System
from ferryman.services import systems as all_systems


@click.command("up", context_settings={"ignore_unknown_options": True})
@click.option("--embedded", is_flag=True, help="Use only what this machine and the wheels have: no Docker.")
@wheels_option
@click.option("--registry/--no-registry", default=True, show_default=True, help="Start a schema registry too.")
@systems_option
@json_option
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM...]")
@click.pass_context
def command(context: click.Context, /, systems: Sequence[str], program: tuple[str, ...], **options: bool) -> int:
    """Bring up PostgreSQL (migrated), Kafka and a schema registry on this machine, until Ctrl-C.

    Their data is temporary and goes away with them. The database has the engine's tables, and those of the systems that
    --for names. The URL is that of the database's owner, so that your own migrations can run: give each process a login
    with its roles where it matters. With a PROGRAM, it runs with the servers in its environment, and they go away when
    it ends; your ferryman.toml counts for it, except for the databases and the brokers that it names:

    \b
      ferryman up --embedded
      ferryman up --embedded -- ferryman doctor
    """
    chosen = wiring.systems_called(systems)
    named = wiring.names_in_file(context)
    stop = threading.Event()
    reach = "wheels" if options["wheels"] else "machine" if options["embedded"] else "anywhere"
    owners = (ENGINE, *(system.owner for system in chosen))
    with (
        signals.heard(stop.set),
        wiring.embedded().open_stack(reach=reach, registry_too=options["registry"], owners=owners) as parts,
    ):
        for climb in parts.climbs:
            say(str(climb))
        variables = beside(parts.environment, chosen, named)
        if program:
            return _run(program, variables, stop)
        if options["as_json"]:
            print_json(variables)
        else:
            click.echo("\n".join(f"export {name}={value}" for name, value in variables.items()))
            say("ready: Ctrl-C stops everything")
        stop.wait()
    return 0


def beside(variables: dict[str, str], chosen: Collection[System], named: Collection[str] = ()) -> dict[str, str]:
    """Put the one database in place of every other that these systems have or that the settings file names.

    Nothing that runs beside these servers may touch a database of anybody else: a relay would publish its outbox here.
    """
    url = variables[env_name("database_url")]
    others = {
        env_name(setting): url
        for system in all_systems()
        for setting in system.databases.values()
        if system in chosen or setting in named
    }
    return {**variables, env_name("relay.sources"): "{}", **others}


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
