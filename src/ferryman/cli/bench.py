"""`ferryman bench`"""

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, print_table, say
from ferryman.runtime.exits import Exit

if TYPE_CHECKING:
    from ferryman.bench.figures import Figure

FULL_ENTRIES = 1_000_000


@click.command("bench")
@click.argument("name", type=click.Choice(["relay", "inbox", "latency", "pipeline", "codec"]))
@click.option("--entries", default=FULL_ENTRIES, show_default=True, type=click.IntRange(min=1000),
              help="How many entries are preloaded; some figures take five times as many.")  # fmt: skip
@click.option("--only", multiple=True, metavar="FIGURE", help="Measure only this figure. May be repeated.")
@click.option("--quick", is_flag=True, help="A hundredth of everything: shows that it works, not how well.")
@json_option
@click.pass_context
def command(
    context: click.Context, *, name: str, entries: int, only: tuple[str, ...], quick: bool, as_json: bool
) -> int:
    """Measure Ferryman against its goals: each figure beside its denominator, in the same run.

    It brings up a PostgreSQL and a Kafka of its own, with ordinary settings, unless the settings name them. On
    servers that are named, it makes databases and topics of its own and drops them; WAL and transaction numbers are
    the whole server's, so nobody else may write to it meanwhile.

    Exit 0 when every goal is met, 1 when one is not. NAME is relay, inbox, latency,
    pipeline or codec; the last needs no servers.
    """
    wiring.embedded()  # says which package is missing
    from ferryman.bench import machine, parts, runs
    from ferryman.bench.scale import Scale

    if unknown := set(only) - set(runs.names(name)):
        known = ", ".join(runs.names(name))
        raise click.BadParameter(f"no figure is called {', '.join(sorted(unknown))}; there are: {known}", context)
    scale = Scale.of(entries, quick=quick)
    given = wiring.loaded(context).settings, scale, wiring.environment, say
    opened = (
        nullcontext(parts.open_without_servers(*given)) if name in runs.WITHOUT_SERVERS else parts.open_bench(*given)
    )
    with opened as bench:
        where = machine.describe(bench.server_url, bench.kafka_version)
        figures = list(runs.measure(bench, name, only))
    if as_json:
        print_json({"figures": [figure.as_dict() for figure in figures], "machine": where})
    else:
        _print(figures, quick=quick)
    return Exit.OK if all(figure.met for figure in figures) else Exit.FAILURE


def _print(figures: "list[Figure]", *, quick: bool) -> None:
    marks = {True: click.style("✓", fg="green"), False: click.style("✗", fg="red")}
    rows = [
        (marks[each.met], each.name, "-" if each.value is None else f"{each.value:,.4g}", each.goal, each.unit)
        for each in figures
    ]
    print_table(("", "figure", "value", "goal", "unit"), rows)
    for each in figures:
        if each.value is None:
            say(f"{each.name}: {each.raw['why']}")
    if quick:
        say("a quick run: it shows that everything works, and its numbers say nothing of the goals")
