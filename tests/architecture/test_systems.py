"""A system is added by its folder alone: command line, console, migrations, settings and docs find its descriptor."""

import runpy
from pathlib import Path
from typing import Any

import click
import pytest

from ferryman import services
from ferryman.cli import run, wiring
from ferryman.cli.up import beside
from ferryman.console.service import ApiService
from ferryman.migrations import chains
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.setting import describe
from ferryman.runtime.sources import BadSettings

ROOT = Path(__file__).parents[2]

TOKEN = {"FERRYMAN_API__TOKENS__SHOP__SHA256": "0" * 64, "FERRYMAN_API__TOKENS__SHOP__SCOPES": '["toys:write"]'}


@pytest.mark.usefixtures("toys")
def test_run_knows_the_system_and_lists_and_completes_it() -> None:
    context = click.Context(run.command)
    assert "builds toys" in run.command.get_help(context)
    assert [each.value for each in run.ServiceName().shell_complete(context, run.command.params[0], "to")] == ["toys"]
    [built] = wiring.services(["toys"], wiring.load_settings({}).settings)
    assert built.name == "toys"


@pytest.mark.usefixtures("toys")
def test_its_settings_are_read_checked_and_documented() -> None:
    found: Any = wiring.load_settings({"FERRYMAN_TOYS__SHOP_URL": "postgresql://shop/toys"}).settings
    assert found.toys.shop_url == "postgresql://shop/toys"
    with pytest.raises(BadSettings, match=r"did you mean FERRYMAN_TOYS__SHOP_URL\?"):
        wiring.load_settings({"FERRYMAN_TOYS__SHOP_URLL": "x"})
    assert "toys.shop_url" in [each.name for each in describe(wiring.settings_class())]
    assert wiring.with_outboxes(found).outbox["toys"].table == "toys.outbox"


@pytest.mark.usefixtures("toys")
def test_the_api_has_its_routes_and_knows_its_scopes() -> None:
    environment = {**TOKEN, "FERRYMAN_DATABASE_URL": "postgresql://u@h/d"}
    assert "/toys" in ApiService(wiring.load_settings(environment).settings).app.openapi()["paths"]


@pytest.mark.usefixtures("toys")
def test_migrations_catalogue_docs_and_up_know_it() -> None:
    assert "toys" in chains.parse("all")
    assert wiring.catalogue(wiring.load_settings({}).settings, ["toys"]).topics
    assert "toy: `toys.toys`" in runpy.run_path(str(ROOT / "scripts" / "reference.py"))["machines"]()
    urls = {"FERRYMAN_DATABASE_URL": "here"}
    assert beside(urls, wiring.systems_called(["toys"]))["FERRYMAN_TOYS__SHOP_URL"] == "here"
    assert "FERRYMAN_TOYS__SHOP_URL" not in beside(urls, [])
    assert beside(urls, [], ["toys.shop_url"])["FERRYMAN_TOYS__SHOP_URL"] == "here"


def test_without_a_path_and_without_names_there_is_no_catalogue() -> None:
    settings = wiring.load_settings({}).settings
    with pytest.raises(Misconfigured, match=r"--for: notifier, payments, reviews, wallet, webhooks, or all") as refused:
        wiring.catalogue(settings)
    assert refused.value.setting == "schemas.path"
    assert wiring.catalogue(settings, ["all"]).topics


def test_an_unknown_system_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        Misconfigured,
        match=r"no system is called paymets.*notifier, payments, reviews, runner, wallet, webhooks, or all",
    ):
        wiring.catalogue(wiring.load_settings({}).settings, ["paymets"])


def test_the_lowest_room_knows_no_service() -> None:
    """Not by an import, which a contract forbids, and not by a name either."""
    files = [*(ROOT / "src" / "ferryman" / "runtime").glob("*.py")]
    names = [system.name for system in services.systems()]
    telling = {file.name: [name for name in names if name in file.read_text()] for file in files}
    assert {file: found for file, found in telling.items() if found} == {}
