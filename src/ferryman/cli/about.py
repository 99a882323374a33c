"""`ferryman version` and `ferryman completion`"""

import platform
from importlib.metadata import version as installed

import click
from click.shell_completion import get_completion_class

from ferryman.cli.app import app
from ferryman.cli.output import CommandResult, answering
from ferryman.runtime.version import __version__

PACKAGES = ("confluent-kafka", "fastavro", "prometheus-client", "psycopg", "sqlalchemy")


@click.command("version")
@answering
def version() -> CommandResult:
    """Print the version; with --json, those of its libraries too."""
    packages = {name: installed(name) for name in PACKAGES}
    data = {"ferryman": __version__, "python": platform.python_version(), "packages": packages}
    return CommandResult(data, [f"ferryman {__version__}"])


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell, for its start-up files:

    \b
      bash:  ferryman completion bash > ~/.local/share/bash-completion/completions/ferryman
      zsh:   ferryman completion zsh > ~/.zfunc/_ferryman
      fish:  ferryman completion fish > ~/.config/fish/completions/ferryman.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "ferryman", "_FERRYMAN_COMPLETE").source())
