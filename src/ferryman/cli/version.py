"""`ferryman version`"""

import platform
from importlib.metadata import version as installed

import click

from ferryman.cli.output import json_option, print_json
from ferryman.runtime.version import __version__

PACKAGES = ("alembic", "confluent-kafka", "fastavro", "prometheus-client", "psycopg", "sqlalchemy")


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Say which version this is; with --json, of the libraries below it too."""
    if as_json:
        packages = {name: installed(name) for name in PACKAGES}
        print_json({"ferryman": __version__, "python": platform.python_version(), "packages": packages})
    else:
        click.echo(f"ferryman {__version__}")
