"""`ferryman completion`"""

import click
from click.shell_completion import get_completion_class

from ferryman.cli.app import app


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell, to be read when it starts:

    \b
      bash:  ferryman completion bash > ~/.local/share/bash-completion/completions/ferryman
      zsh:   ferryman completion zsh > ~/.zfunc/_ferryman
      fish:  ferryman completion fish > ~/.config/fish/completions/ferryman.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "ferryman", "_FERRYMAN_COMPLETE").source())
