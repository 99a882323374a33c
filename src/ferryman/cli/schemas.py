"""`ferryman schemas` and `ferryman topics`: the contract with the readers of our topics."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from ferryman.cli import wiring
from ferryman.cli.options import yes_option
from ferryman.cli.output import CommandResult, answering, names_of, say, table, tabled
from ferryman.runtime.errors import Exit, FerrymanError, Misconfigured
from ferryman.schemas import releases, topic_pages
from ferryman.schemas.catalogue import Catalogue
from ferryman.schemas.cluster_topics import ClusterTopics
from ferryman.schemas.registry import registry_of
from ferryman.services import systems


def _chosen(context: click.Context, _: click.Parameter, names: str) -> Catalogue | None:
    return None if context.resilient_parsing else wiring.catalogue(wiring.settings(context), names_of(names))


for_option = click.option(
    "--for", "catalogue", metavar="NAMES", default="", callback=_chosen,
    help="Use Ferryman's own catalogue, not that of schemas.path, for these of its systems, comma-separated: "
    f"{', '.join(system.name for system in systems() if system.catalogue)}, or all. They share one catalogue, which is "
    "used whole.",
)  # fmt: skip
"""An option that passes the catalogue itself."""


_ADD_YES = "add --yes to do it"


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
@answering
@click.pass_context
def check_schemas(context: click.Context, catalogue: Catalogue, offline: bool) -> CommandResult:
    """Say whether every type can be released as it is. Exit 1 when one cannot.

    Each schema is compared both ways with every released version (FULL_TRANSITIVE, and no released field or enum symbol
    may go), and the bytes that each version wrote are decoded with it. If registry_url names a registry, it is asked
    too.
    """
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
    data = {"types": len(catalogue.types), "registry_asked": asked, "problems": [asdict(each) for each in problems]}
    if not problems:
        return CommandResult(data, [f"all types ({len(catalogue.types)}) are compatible with every released version"])
    rows = ((each.type, str(each.version or "-"), each.problem) for each in problems)
    return CommandResult(data, tabled(("type", "against version", "problem"), rows), Exit.FAILURE)


@command.command("release")
@click.argument("types", nargs=-1, metavar="[TYPE]...")
@for_option
@answering
def release(types: tuple[str, ...], catalogue: Catalogue) -> CommandResult:
    """Freeze the current version of each TYPE (default: all) under released/, with bytes that it wrote.

    Every later version is checked against it. A released version never changes: the next change needs the next version
    number in catalogue.toml. Commit what this writes.
    """
    for name in types:
        if name not in catalogue.types:
            raise FerrymanError(f"the catalogue has no type {name}", remedy=f"its types: {', '.join(catalogue.types)}")
    chosen = [catalogue.types[name] for name in types or catalogue.types]
    frozen = [{"type": kind.name, "version": kind.version} for kind in chosen if releases.release(catalogue, kind)]
    lines = [f"released {each['type']} version {each['version']}" for each in frozen]
    return CommandResult({"released": frozen}, [*lines, f"{len(chosen) - len(frozen)} were released before"])


@command.command("publish")
@yes_option
@for_option
@answering
@click.pass_context
def publish(context: click.Context, catalogue: Catalogue, yes: bool) -> CommandResult:
    """Register every schema at the registry that registry_url names, under its record's full name.

    Each subject is set to FULL_TRANSITIVE compatibility. Without --yes nothing is changed. Exit 1 when the catalogue
    or the registry objects to a schema: then none is registered.
    """
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
    data = {"dry_run": not yes or refused, "schemas": [each.to_json() for each in plan]}
    why = "the registry objects" if refused else "" if yes else _ADD_YES
    lines = _lines(("type", "subject", "id", ""), [each.row() for each in plan], why)
    return CommandResult(data, lines, Exit.FAILURE if refused else Exit.OK)


def _lines(headings: Sequence[str], rows: Sequence[Sequence[str]], why_unchanged: str) -> Iterator[str]:
    yield table(headings, rows)
    if why_unchanged:
        yield f"nothing was changed: {why_unchanged}"


@command.command("docs")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("docs/topics"), show_default=True,
              help="The folder to write to.")  # fmt: skip
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 when the folder is not up to date.")
@for_option
@answering
def docs(out: Path, catalogue: Catalogue, only_check: bool) -> CommandResult:
    """Write the AsyncAPI document and a page for each topic, for its readers."""
    files = topic_pages.stale(catalogue, out) if only_check else topic_pages.write(catalogue, out)
    if not only_check:
        return CommandResult({"written": list(map(str, files))}, [f"{len(files)} files written to {out}"])
    lines = [f"not up to date: {file}" for file in files]
    lines.append("run `ferryman schemas docs`" if files else f"{out} is up to date")
    return CommandResult({"stale": list(map(str, files))}, lines, Exit.FAILURE if files else Exit.OK)


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
@answering
@click.pass_context
def check_topics(context: click.Context, catalogue: Catalogue) -> CommandResult:
    """List the differences between the catalogue and the cluster. Exit 1 when there are any."""
    return _compared(context, catalogue, Exit.FAILURE)


@topics.command("apply")
@yes_option
@click.option("--replication", type=click.IntRange(1, 32), help="Replicas of new topics. Default: the broker's.")
@for_option
@answering
@click.pass_context
def apply(context: click.Context, catalogue: Catalogue, yes: bool, replication: int | None) -> CommandResult:
    """Create the topics that are missing, and raise retention and message sizes that are too low.

    Without --yes nothing is changed. Exit 5 when differences remain that it leaves alone.
    """
    return _compared(context, catalogue, Exit.PARTIAL, done=yes, replication=replication)


def _compared(
    context: click.Context, catalogue: Catalogue, differing: Exit, *, done: bool | None = None,
    replication: int | None = None,
) -> CommandResult:  # fmt: skip
    """Tell what differs on the cluster, after applying it if it is to be `done`. `differing` is the exit code where
    something differs, which an act that was asked for leaves alone.
    """
    topics = ClusterTopics(wiring.settings(context).kafka)
    found = topics.differences(catalogue)
    if done:
        topics.apply(catalogue, found, replication=replication)
    if limits := topics.limits():
        say(f"note: {limits}")
    dry_run = {} if done is None else {"dry_run": not done}
    data = {**dry_run, "topics": len(catalogue.topics), "differences": [asdict(each) for each in found]}
    if not found:
        return CommandResult(data, [f"the cluster's topics are as the catalogue says ({len(catalogue.topics)})"])
    verbs = {"create": "created", "raise": "raised"} if done else {"create": "create", "raise": "raise"}
    rows = [(each.topic, each.what, each.here or "-", each.wanted, verbs.get(each.action, f"leaves it: {each.why}"))
            for each in found]  # fmt: skip
    lines = _lines(("topic", "what", "here", "catalogue", "apply"), rows, _ADD_YES if done is False else "")
    left = done is None or any(each.action == "leave" for each in found)
    return CommandResult(data, lines, differing if left else Exit.OK)
