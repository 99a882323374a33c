"""`ferryman schemas` and `ferryman topics`: the contract with the readers of our topics."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ferryman.cli import wiring
from ferryman.cli.options import yes_option
from ferryman.cli.output import json_option, names_of, print_json, print_table, say
from ferryman.runtime.errors import Exit, FerrymanError, Misconfigured
from ferryman.services import systems

if TYPE_CHECKING:
    from ferryman.schemas.catalogue import Catalogue


def _chosen(context: click.Context, _: click.Parameter, names: str) -> "Catalogue | None":
    return None if context.resilient_parsing else wiring.catalogue(wiring.settings(context), names_of(names))


for_option = click.option(
    "--for", "catalogue", metavar="NAMES", default="", callback=_chosen,
    help="Use Ferryman's own catalogue, not that of schemas.path, for these of its systems, comma-separated: "
    f"{', '.join(system.name for system in systems() if system.catalogue)}, or all. They share one catalogue, which is "
    "used whole.",
)  # fmt: skip
"""An option that passes the catalogue itself."""


@click.group("schemas")
def command() -> None:
    """Check, publish, release and document the catalogue of topics and types.

    \b
      ferryman schemas check               can the catalogue be released as it is?
      ferryman schemas release             freeze the versions that are new
      ferryman schemas publish --yes       register them
      ferryman schemas docs --out docs     AsyncAPI, and a page for each topic

    The catalogue is the folder that the setting schemas.path names: `catalogue.toml`, `avro/TYPE.avsc` and
    `released/TYPE/VERSION.avsc`. With --for it is that of Ferryman's own systems.
    """


@command.command("check")
@click.option("--offline", is_flag=True, help="Do not ask the registry, even if registry_url names one.")
@for_option
@json_option
@click.pass_context
def check_schemas(context: click.Context, catalogue: "Catalogue", offline: bool, as_json: bool) -> int:
    """Say whether every type can be released as it is. Exit 1 when one cannot.

    Each schema is compared both ways with every released version (FULL_TRANSITIVE, and no released field or enum symbol
    may go), and the bytes that each version wrote are decoded with it. If registry_url names a registry, it is asked
    too.
    """
    from ferryman.schemas import releases
    from ferryman.schemas.registry import registry_of

    settings = wiring.settings(context)
    problems = releases.gate(catalogue)
    asked = settings.registry_url is not None and not offline
    if asked:
        registry = registry_of(settings)
        problems += [
            releases.ReleaseProblem(kind.name, None, f"the registry objects: {each}")
            for kind in catalogue.types.values()
            for each in registry.objections(kind.subject, kind.text)
        ]
    if as_json:
        print_json(
            {"types": len(catalogue.types), "registry_asked": asked, "problems": [asdict(each) for each in problems]}
        )
    elif problems:
        rows = [(each.type, str(each.version or "-"), each.problem) for each in problems]
        print_table(("type", "against version", "problem"), rows)
    else:
        click.echo(f"all types ({len(catalogue.types)}) are compatible with every released version")
    return Exit.FAILURE if problems else Exit.OK


@command.command("release")
@click.argument("types", nargs=-1, metavar="[TYPE]...")
@for_option
@json_option
def release(types: tuple[str, ...], catalogue: "Catalogue", as_json: bool) -> int:
    """Freeze the current version of each TYPE (default: all) under released/, with bytes that it wrote.

    Every later version is checked against it. A released version never changes: the next change needs the next version
    number in catalogue.toml. Commit what this writes.
    """
    from ferryman.schemas import releases

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
@yes_option
@for_option
@json_option
@click.pass_context
def publish(context: click.Context, catalogue: "Catalogue", yes: bool, as_json: bool) -> int:
    """Register every schema at the registry that registry_url names, under its record's full name.

    Each subject is set to FULL_TRANSITIVE compatibility. Without --yes nothing is changed. Exit 1 when the catalogue
    or the registry objects to a schema: then none is registered.
    """
    from ferryman.schemas import releases
    from ferryman.schemas.registry import registry_of

    settings = wiring.settings(context)
    if problems := releases.gate(catalogue):
        raise FerrymanError(str(problems[0]), remedy="`ferryman schemas check` lists what is to be corrected")
    if settings.registry_url is None:
        raise Misconfigured(
            "no registry is named", setting="registry_url",
            remedy="name one; without one the ids follow from the schemas, and nothing needs to be published",
        )  # fmt: skip
    registry = registry_of(settings)
    plan = releases.plan(catalogue, registry)
    refused = any(each.objections for each in plan)
    if yes and not refused:
        plan = releases.publish(plan, registry)
    if as_json:
        print_json({"dry_run": not yes or refused, "schemas": [each.to_json() for each in plan]})
    else:
        print_table(("type", "subject", "id", ""), [each.row() for each in plan])
        if not yes or refused:
            click.echo("nothing was changed" + (": the registry objects" if refused else ": add --yes to do it"))
    return Exit.FAILURE if refused else Exit.OK


@command.command("docs")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("docs/topics"), show_default=True,
              help="The folder to write to.")  # fmt: skip
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 when the folder is not up to date.")
@for_option
@json_option
def docs(out: Path, catalogue: "Catalogue", only_check: bool, as_json: bool) -> int:
    """Write the AsyncAPI document and a page for each topic, for its readers."""
    from ferryman.schemas import topic_pages

    files = topic_pages.stale(catalogue, out) if only_check else topic_pages.write(catalogue, out)
    if as_json:
        print_json({"stale" if only_check else "written": [str(file) for file in files]})
    elif only_check:
        for file in files:
            click.echo(f"not up to date: {file}")
        click.echo("run `ferryman schemas docs`" if files else f"{out} is up to date")
    else:
        click.echo(f"{len(files)} files written to {out}")
    return Exit.FAILURE if only_check and files else Exit.OK


@click.group("topics")
def topics() -> None:
    """Compare the catalogue's topics with the cluster's, and create what is missing.

    \b
      ferryman topics check           what differs; exit 1 when something does
      ferryman topics apply           what it would do
      ferryman topics apply --yes     creates topics, and raises limits that are too low

    The catalogue is the folder that the setting schemas.path names, or with --for that of Ferryman's own systems.
    Nothing is ever deleted or lowered, and no partition is added: such differences are listed and left to a person.
    """


@topics.command("check")
@for_option
@json_option
@click.pass_context
def check_topics(context: click.Context, catalogue: "Catalogue", as_json: bool) -> int:
    """List the differences between the catalogue and the cluster. Exit 1 when there are any."""
    return Exit.FAILURE if _compared(context, catalogue, as_json=as_json) else Exit.OK


@topics.command("apply")
@yes_option
@click.option("--replication", type=click.IntRange(1, 32), help="Replicas of new topics. Default: the broker's.")
@for_option
@json_option
@click.pass_context
def apply(context: click.Context, catalogue: "Catalogue", yes: bool, replication: int | None, as_json: bool) -> int:
    """Create the topics that are missing, and raise retention and message sizes that are too low.

    Without --yes nothing is changed. Exit 5 when differences remain that it leaves alone.
    """
    left = _compared(context, catalogue, as_json=as_json, done=yes, replication=replication)
    return Exit.PARTIAL if "leave" in left else Exit.OK


def _compared(
    context: click.Context, catalogue: "Catalogue", *, as_json: bool, done: bool | None = None,
    replication: int | None = None,
) -> list[str]:  # fmt: skip
    """Print what differs on the cluster, after applying it if it is to be `done`. Return what to do about each."""
    from ferryman.schemas.cluster_topics import ClusterTopics

    topics = ClusterTopics(wiring.settings(context).kafka)
    found = topics.differences(catalogue)
    if done:
        topics.apply(catalogue, found, replication=replication)
    if limits := topics.limits():
        say(f"note: {limits}")
    if as_json:
        dry_run = {} if done is None else {"dry_run": not done}
        print_json({**dry_run, "topics": len(catalogue.topics), "differences": [asdict(each) for each in found]})
    elif not found:
        click.echo(f"the cluster's topics are as the catalogue says ({len(catalogue.topics)})")
    else:
        verbs = {"create": "created", "raise": "raised"} if done else {"create": "create", "raise": "raise"}
        rows = [
            (each.topic, each.what, each.here or "-", each.wanted, verbs.get(each.action, f"leaves it: {each.why}"))
            for each in found
        ]
        print_table(("topic", "what", "here", "catalogue", "apply"), rows)
        if done is False:
            click.echo("nothing was changed: add --yes to do it")
    return [each.action for each in found]
