"""`ferryman run`"""

import difflib

import click
import structlog
from click.shell_completion import CompletionItem

from ferryman.cli import wiring
from ferryman.runtime.service import collect_less, serve

log = structlog.get_logger(__name__)


class ServiceName(click.ParamType[str]):
    """The name of a service or of a described outbox, or module:object for one of the user's own."""

    name = "service"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        known = wiring.runs()
        if value not in known and ":" not in value and value not in (outboxes := self._outboxes(ctx)):
            known |= dict.fromkeys(outboxes, ("", ""))
            close = difflib.get_close_matches(value, known, n=1)
            hint = f"Did you mean '{close[0]}'?" if close else f"The services are: {', '.join(known)}."
            own = "Name your own as module:object, or describe a table as [outbox.NAME]."
            self.fail(f"there is no service called {value}. {hint} {own}", param, ctx)
        return value

    def _outboxes(self, ctx: click.Context | None) -> list[str]:
        return list(wiring.loaded(ctx).settings.outbox) if ctx else []

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in wiring.runs() if name.startswith(incomplete)]


class RunCommand(click.Command):
    """A command whose help lists the services."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = (
            "module:object",
            "your own: a Consumer, Courier or Chore, an object with a name and run(life), or a function that makes one",
        )
        described = ("NAME", "delivers the rows of the table that [outbox.NAME] describes")
        with formatter.section("Services"):
            formatter.write_dl([*((name, text) for name, (_, text) in wiring.runs().items()), described, own])
        super().format_options(ctx, formatter)


@click.command("run", cls=RunCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", type=ServiceName())
@click.pass_context
def command(context: click.Context, names: tuple[str, ...]) -> int:
    """Run services until SIGTERM or Ctrl-C; they finish the work in flight, then the process exits 0.

    A service needs its system's tables: `ferryman migrate --for SYSTEM`. While it runs, /livez, /readyz and /metrics
    answer on the address that the settings under [health] name. A second signal stops at once, with exit code 130.
    """
    settings = wiring.settings(context)
    services = wiring.services(names, settings)
    ours = {getattr(each, "outbox_name", None) for each in services}  # a courier of the user's may deliver one
    used = wiring.asked_for(settings)
    left = [name for name in used if settings.outbox[name].channel != "kafka" and name not in ours]
    if "relay" in names and left:
        log.info("outboxes left to other processes", outboxes=left, command=f"ferryman run {' '.join(left)}")
    collect_less()
    return serve(services, settings)
