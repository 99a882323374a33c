"""`ferryman schemas`: the contract with whoever reads our topics."""

from pathlib import Path
from typing import Any

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, print_table
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.exits import Exit
from ferryman.runtime.settings import Settings


@click.group("schemas")
def command() -> None:
    """Check, publish, release and document the catalogue of topics and types.

    \b
      ferryman schemas check               does the catalogue keep what was promised?
      ferryman schemas release             freeze the versions that are new
      ferryman schemas publish --yes       register them
      ferryman schemas docs --out docs     AsyncAPI, and a page for each topic

    The catalogue is the folder that the setting schemas.path names: `catalogue.toml`, `avro/TYPE.avsc` and
    `released/TYPE/VERSION.avsc`. Without one it is Ferryman's own.
    """


@command.command("check")
@click.option("--offline", is_flag=True, help="Do not ask the registry, even if one is named.")
@json_option
@click.pass_context
def check(context: click.Context, offline: bool, as_json: bool) -> int:
    """Say whether every type can be released as it is. Exit 1 when one cannot.

    Each schema is compared both ways with every version that was released (FULL_TRANSITIVE, and no released field or
    enum symbol may go), and the bytes that each version wrote are decoded with it. Where registry_url names a registry,
    it is asked too.
    """
    from ferryman.schemas import releases

    settings = wiring.settings(context)
    catalogue = wiring.catalogue(settings)
    problems = [{"type": each.type, "version": each.version, "problem": each.what} for each in releases.gate(catalogue)]
    asked = settings.registry_url is not None and not offline
    if asked:
        registry = wiring.registry(settings, catalogue)
        for kind in catalogue.types.values():
            said = registry.objections(kind.subject, kind.text)
            problems += [
                {"type": kind.name, "version": None, "problem": f"the registry objects: {each}"} for each in said
            ]
    if as_json:
        print_json({"types": len(catalogue.types), "registry_asked": asked, "problems": problems})
    elif problems:
        rows = [(each["type"], str(each["version"] or "-"), each["problem"]) for each in problems]
        print_table(("type", "against version", "problem"), [tuple(map(str, row)) for row in rows])
    else:
        click.echo(f"{len(catalogue.types)} types keep what was promised")
    return Exit.FAILURE if problems else Exit.OK


@command.command("release")
@click.argument("types", nargs=-1, metavar="[TYPE]...")
@json_option
@click.pass_context
def release(context: click.Context, types: tuple[str, ...], as_json: bool) -> int:
    """Freeze the current version of each TYPE (default: all) under released/, with bytes that it wrote.

    From then on the gate holds every later version against it. A version that is frozen stays as it is: the next change
    needs the next version number in catalogue.toml. Commit what this writes.
    """
    from ferryman.schemas import releases

    catalogue = wiring.catalogue(wiring.settings(context))
    for name in types:
        if name not in catalogue.types:
            raise FerrymanError(f"the catalogue has no type {name}", remedy=f"its types: {', '.join(catalogue.types)}")
    chosen = [catalogue.types[name] for name in types or catalogue.types]
    frozen = [{"type": kind.name, "version": kind.version} for kind in chosen if releases.release(catalogue, kind)]
    if as_json:
        print_json({"released": frozen})
    else:
        for each in frozen:
            click.echo(f"released {each['type']} version {each['version']}")
        click.echo(f"{len(chosen) - len(frozen)} were released before")
    return Exit.OK


@command.command("publish")
@click.option("--yes", is_flag=True, help="Do it. Without, it only says what it would do.")
@json_option
@click.pass_context
def publish(context: click.Context, yes: bool, as_json: bool) -> int:
    """Register every schema at the registry that registry_url names, under its record's full name.

    Each subject is told to insist on FULL_TRANSITIVE compatibility. Without --yes nothing is changed. Exit 1 when the
    catalogue or the registry objects to one: then none is registered.
    """
    from ferryman.schemas import publishing, releases

    settings = wiring.settings(context)
    catalogue = wiring.catalogue(settings)
    if problems := releases.gate(catalogue):
        raise FerrymanError(str(problems[0]), remedy="`ferryman schemas check` lists what is to be corrected")
    plan = publishing.plan(catalogue, wiring.registry(_with_registry(settings), catalogue))
    refused = [each for each in plan if each.objections]
    if yes and not refused:
        plan = publishing.publish(plan, wiring.registry(settings, catalogue))
    if as_json:
        print_json({"dry_run": not yes or bool(refused), "schemas": [each.to_json() for each in plan]})
    else:
        print_table(("type", "subject", "id", ""), [each.row() for each in plan])
        if not yes or refused:
            click.echo("nothing was changed" + (": the registry objects" if refused else ": add --yes to do it"))
    return Exit.FAILURE if refused else Exit.OK


@command.command("docs")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("docs/topics"), show_default=True,
              help="The folder to write to.")  # fmt: skip
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 when the folder is not up to date.")
@json_option
@click.pass_context
def docs(context: click.Context, out: Path, only_check: bool, as_json: bool) -> int:
    """Write the AsyncAPI document and a page for each topic, for whoever reads them."""
    from ferryman.schemas import docs as documents

    catalogue = wiring.catalogue(wiring.settings(context))
    files = documents.stale(catalogue, out) if only_check else documents.write(catalogue, out)
    said: dict[str, Any] = {"stale" if only_check else "written": [str(file) for file in files]}
    if as_json:
        print_json(said)
    elif only_check:
        for file in files:
            click.echo(f"not up to date: {file}")
        click.echo("run `ferryman schemas docs`" if files else f"{out} is up to date")
    else:
        click.echo(f"{len(files)} files written to {out}")
    return Exit.FAILURE if only_check and files else Exit.OK


def _with_registry(settings: Settings) -> Settings:
    if settings.registry_url is None:
        raise FerrymanError(
            "no registry is named", setting="registry_url",
            remedy="name one; without one the ids follow from the schemas, and nothing needs to be published",
        )  # fmt: skip
    return settings
