"""`ferryman config show|check|schema`"""

from operator import attrgetter
from typing import Any

import click

from ferryman.cli import wiring
from ferryman.cli.output import CommandResult, answering, print_json, tabled
from ferryman.runtime.errors import Exit, Misconfigured, env_name
from ferryman.runtime.redaction import MASK, redact_value
from ferryman.runtime.setting import Described, describe
from ferryman.runtime.sources import BadSettings, Loaded, plain


@click.group("config")
def command() -> None:
    """Show and check the settings, and where each comes from.

    A setting is in ferryman.toml (`pool_max` under `[database]`) or in the environment, which wins
    (FERRYMAN_DATABASE__POOL_MAX; with _FILE added, the name of a file that holds the value).
    """


@command.command("show")
@answering
@click.pass_context
def show(context: click.Context) -> CommandResult:
    """List every setting with its value and where it comes from; secrets are masked."""
    loaded = wiring.loaded(context)
    rows = [row for setting in describe(wiring.settings_class()) for row in _rows(setting, loaded)]
    cells = ((row["name"], _shown(row["value"], row["unit"]), row["from"], row["meaning"]) for row in rows)
    return CommandResult(rows, tabled(("setting", "value", "from", "meaning"), cells))


@command.command("check")
@answering
@click.pass_context
def check(context: click.Context) -> CommandResult:
    """List everything that is wrong with the settings; exit 3 if something is."""
    problems: list[Any] = []
    try:
        found = wiring.loaded(context).settings
        wiring.check_scopes(found)
        wiring.check_email(found)
    except BadSettings as error:
        problems = error.problems
    except Misconfigured as error:
        problems = [error]
    told = [{"message": each.message, "setting": each.setting, "remedy": each.remedy} for each in problems]
    lines = map(str, problems or ["the settings are good"])
    return CommandResult({"ok": not problems, "problems": told}, lines, Exit.CONFIGURATION if problems else Exit.OK)


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of ferryman.toml, for editors."""
    print_json(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **wiring.settings_class().model_json_schema()}
    )


def _rows(setting: Described, loaded: Loaded) -> list[dict[str, Any]]:
    """Return one row, or a row for each entry of a table with names of the user's own."""
    if ".NAME." in setting.name:
        table, inner = setting.name.split(".NAME.")
        names = attrgetter(table)(loaded.settings)
        return [
            _row(f"{table}.{name}.{inner}", plain(attrgetter(inner)(names[name])), setting, loaded, setting.text)
            for name in names
        ]
    value = plain(attrgetter(setting.name)(loaded.settings))
    if setting.name == "kafka.properties":
        return [_row(f"kafka.{name}", inner, setting, loaded, "librdkafka's own") for name, inner in value.items()]
    return [_row(setting.name, value, setting, loaded, setting.text)]


def _row(name: str, value: Any, setting: Described, loaded: Loaded, meaning: str) -> dict[str, Any]:
    return {
        "name": name,
        "environment": env_name(name),
        "value": redact_value(name, value),
        "unit": setting.unit,
        "from": loaded.origins.get(name, "default"),
        "meaning": meaning,
    }


def _shown(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value} {unit}".strip() if value != MASK else MASK
