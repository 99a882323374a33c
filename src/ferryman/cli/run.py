"""`ferryman run`"""

import click

from ferryman.cli import wiring
from ferryman.runtime.garbage import collect_less
from ferryman.runtime.service import serve


@click.command("run")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.pass_context
def command(context: click.Context, names: tuple[str, ...]) -> int:
    """Run services until SIGTERM or Ctrl-C; they finish the work in flight, then the process exits 0.

    \b
    NAME is one of
      relay          publishes outboxes to Kafka: of `database_url`, or of each of [relay.sources]
      payments       has payments done: applies results, undoes what is not answered in time; its tables:
                     `ferryman migrate --for payments`
      wallet         takes and gives back money as payments ask it to; its tables: `ferryman migrate --for wallet`
      api            answers over HTTP: payments are asked for and looked at; its tables: those of payments
      module:object  your own: an object with a name and run(life), or a function that takes the settings
                     and returns one

    While it runs, /livez, /readyz and /metrics answer on the address that the settings under [health] name. A second
    signal stops at once, with exit code 130.
    """
    settings = wiring.settings(context)
    services = wiring.services(names, settings)
    collect_less()
    return serve(services, settings)
