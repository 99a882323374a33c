"""The command `ferryman bench`."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from ferryman.cli import wiring
from ferryman.cli.output import CommandResult, answering, say, table
from ferryman.runtime.errors import Exit

if TYPE_CHECKING:
    from ferryman.bench.goals import Figure

FULL_ENTRIES = 1_000_000


@click.command("bench")
@click.argument(
    "name", type=click.Choice(["relay", "inbox", "latency", "pipeline", "sinks", "saga", "webhooks", "codec"])
)
@click.option("--entries", default=FULL_ENTRIES, show_default=True, type=click.IntRange(min=1000),
              help="The number of preloaded entries. Some figures take five times as many.")  # fmt: skip
@click.option("--only", multiple=True, metavar="FIGURE", help="Measure only this figure. Can be repeated.")
@click.option(
    "--quick", is_flag=True, help="Measure a hundredth of everything: this shows that it works, not how well."
)
@answering
@click.pass_context
def command(context: click.Context, *, name: str, entries: int, only: tuple[str, ...], quick: bool) -> CommandResult:
    """Measure Ferryman against its goals: each figure beside its denominator, in the same run.

    Unless the settings name servers, it starts a PostgreSQL and a Kafka of its own, with ordinary settings. On named
    servers it creates its own databases and topics and drops them at the end; do not write to these servers meanwhile,
    because WAL and transaction numbers are counted for the whole server.

    NAME is relay, inbox, latency, pipeline, sinks, saga, webhooks or codec; sinks and saga need no Kafka, and codec no
    server.
    Exit 0 when every goal is met, 1 when one is missed.
    """
    wiring.embedded()  # says which package is missing
    from ferryman.bench import meters, runs
    from ferryman.bench.servers import Bench, Scale, open_bench

    if unknown := set(only) - set(runs.names(name)):
        known = ", ".join(runs.names(name))
        raise click.BadParameter(
            f"no figure has the name {', '.join(sorted(unknown))}; the names are: {known}", context
        )
    settings, scale = wiring.loaded(context).settings, Scale.of(entries, quick=quick)
    opened = (
        nullcontext(Bench(scale, settings.kafka, wiring.environment, say))
        if name in runs.WITHOUT_SERVERS
        else open_bench(settings, scale, wiring.environment, say, with_kafka=name not in runs.WITHOUT_KAFKA)
    )
    with opened as bench:
        where = meters.describe(bench.server_url, bench.kafka_version)
        figures = list(runs.measure(bench, name, only))
    data = {"figures": [figure.as_dict() for figure in figures], "machine": where}
    met = all(figure.met for figure in figures)
    return CommandResult(data, _lines(figures, quick=quick), Exit.OK if met else Exit.FAILURE)


def _lines(figures: "list[Figure]", *, quick: bool) -> Iterator[str]:
    marks = {True: click.style("✓", fg="green"), False: click.style("✗", fg="red")}
    rows = [
        (marks[each.met], each.name, "-" if each.value is None else f"{each.value:,.4g}", each.goal, each.unit)
        for each in figures
    ]
    yield table(("", "figure", "value", "goal", "unit"), rows)
    if quick:
        say("this was a quick run: it shows that everything works, but its numbers say nothing about the goals")
