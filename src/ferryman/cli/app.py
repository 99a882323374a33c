"""The program: its commands load when they are asked for, and every error ends in one line and its exit code."""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from ferryman.runtime.errors import FerrymanError, env_name
from ferryman.runtime.exits import Exit

# name: (module, the line in `ferryman --help`). The module's `command` is loaded only when it runs.
COMMANDS = {
    "version": ("ferryman.cli.version", "Say which version this is."),
    "config": ("ferryman.cli.config", "Show and check the settings, and where each comes from."),
    "migrate": ("ferryman.cli.migrate", "Bring the database's schema to this version."),
    "doctor": ("ferryman.cli.doctor", "Check PostgreSQL, Kafka and the registry, with a remedy for each failure."),
    "run": ("ferryman.cli.run", "Run services until SIGTERM; they drain, then exit 0."),
    "outbox": ("ferryman.cli.outbox", "See what waits to be published, and why; replay, discard."),
    "inbox": ("ferryman.cli.inbox", "See what consumers handled and could not handle; requeue, discard."),
    "trace": ("ferryman.cli.trace", "Tell one payment's story across both databases and Kafka, and what to do next."),
    "reconcile": ("ferryman.cli.reconcile", "Name why payments are still pending; mend what is safe to mend."),
    "audit": ("ferryman.cli.audit", "Prove that nothing was lost or taken twice, over both databases."),
    "schemas": ("ferryman.cli.schemas", "Check, publish, release and document the catalogue of topics and types."),
    "topics": ("ferryman.cli.topics", "Compare the catalogue's topics with the cluster's; create what is missing."),
    "pause": ("ferryman.cli.pause", "Stop publishing a topic or the whole outbox, or stop a consumer."),
    "resume": ("ferryman.cli.resume", "Let a paused topic, outbox or consumer go on."),
    "drain": ("ferryman.cli.drain", "Publish what is pending, then exit: for cron and for tests."),
    "up": ("ferryman.cli.up", "Bring up PostgreSQL, Kafka and a registry on this machine, to try things out."),
    "demo": ("ferryman.cli.demo", "See Ferryman work, on servers of its own that go away."),
    "bench": ("ferryman.cli.bench", "Measure the relay against its goals, on servers of its own."),
    "completion": ("ferryman.cli.completion", "Print the shell completion script."),
}

EPILOG = """\
Exit codes: 0 ok, 1 failure, 2 usage, 3 configuration, 4 a dependency does not answer, 5 done in part,
130 interrupted.

Settings come from ferryman.toml and from FERRYMAN_* in the environment; `ferryman config show` lists them.
"""


class LazyCommands(click.Group):
    """Lists every command without loading it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message}{_nearest(args[0])}", ctx) from None


@click.group(
    cls=LazyCommands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE",
              help="The settings file. Default: $FERRYMAN_CONFIG, or ./ferryman.toml where it exists.")  # fmt: skip
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="ferryman", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context, config_file: Path | None, debug: bool) -> None:  # noqa: ARG001 - `_report` reads it
    """What was committed gets across, and takes effect once.

    Ferryman carries messages from PostgreSQL outboxes to Kafka, webhooks and e-mail, and from Kafka into inboxes that
    take effect once.
    """
    context.obj = config_file


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code; only --debug lets a traceback through."""
    try:
        result = app.main(args=list(arguments), prog_name="ferryman", standalone_mode=False)
        return int(result) if isinstance(result, int) else Exit.OK
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except FerrymanError as error:
        return _report(error, arguments)
    except Exception as error:  # whatever was not foreseen still ends in one line
        return _report(FerrymanError(f"unexpected {type(error).__name__}: {error}", remedy=_BUG), arguments, error)


_BUG = "run it again with --debug and report the traceback: this is a bug"


def _report(error: FerrymanError, arguments: Sequence[str], cause: BaseException | None = None) -> int:
    from ferryman.runtime.redaction import redact

    if "--debug" in arguments:
        traceback.print_exception(cause or error)
    if "--json" in arguments:
        print(json.dumps({"error": _as_dict(error)}, indent=2))
    print(f"ferryman: {redact(str(error))}", file=sys.stderr)
    return error.exit_code


def _as_dict(error: FerrymanError) -> dict[str, object]:
    from ferryman.runtime.redaction import redact

    return {
        "message": redact(error.message),
        "setting": error.setting,
        "environment": env_name(error.setting) if error.setting else None,
        "remedy": error.remedy,
        "exit_code": int(error.exit_code),
    }


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
