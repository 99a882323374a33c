"""`ferryman config show|check|schema`"""

from typing import Any

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, print_table
from ferryman.runtime.describing import Described, describe
from ferryman.runtime.errors import env_name
from ferryman.runtime.exits import Exit
from ferryman.runtime.redaction import MASK, redact_value
from ferryman.runtime.settings import Settings
from ferryman.runtime.sources import BadSettings, Loaded, plain


@click.group("config")
def command() -> None:
    """Show and check the settings, and where each comes from.

    A setting stands in ferryman.toml (`pool_max` under `[database]`), and above that in the environment
    (FERRYMAN_DATABASE__POOL_MAX; with _FILE behind it, the name of a file that holds the value).
    """


@command.command("show")
@json_option
@click.pass_context
def show(context: click.Context, as_json: bool) -> None:
    """List every setting with its value and where it comes from; secrets are masked."""
    rows = [row for setting in describe() for row in _rows(setting, wiring.loaded(context))]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("setting", "value", "from", "meaning"),
            [(row["name"], _shown(row["value"], row["unit"]), row["from"], row["meaning"]) for row in rows],
        )


@command.command("check")
@json_option
@click.pass_context
def check(context: click.Context, as_json: bool) -> int:
    """Say everything that is wrong with the settings; exit 3 when something is."""
    problems: list[Any] = []
    try:
        wiring.loaded(context)
    except BadSettings as error:
        problems = error.problems
    if as_json:
        print_json({"ok": not problems, "problems": [
            {"message": each.message, "setting": each.setting, "remedy": each.remedy} for each in problems
        ]})  # fmt: skip
    else:
        click.echo("\n".join(map(str, problems)) or "the settings are good")
    return Exit.CONFIGURATION if problems else Exit.OK


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of ferryman.toml, for editors that check while one types."""
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()})


def _rows(setting: Described, loaded: Loaded) -> list[dict[str, Any]]:
    """One row, or for a table of free names one for each of them."""
    if ".NAME." in setting.name:
        table, inner = setting.name.split(".NAME.")
        names = _value(loaded.settings, table)
        return [
            _row(f"{table}.{name}.{inner}", plain(getattr(names[name], inner)), setting, loaded, setting.text)
            for name in names
        ]
    value = plain(_value(loaded.settings, setting.name))
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


def _value(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _shown(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value} {unit}".strip() if value != MASK else MASK
