"""`ferryman migrate`"""

import click

from ferryman.cli import wiring
from ferryman.cli.output import CommandResult, json_option, say, tabled
from ferryman.migrations import chains
from ferryman.runtime import postgres, roles


@click.command("migrate")
@click.option("--for", "names", default=chains.ENGINE, show_default=True, metavar="NAMES",
              help=f"The owners of the tables: {', '.join(chains.owners())}, comma-separated, or all.")  # fmt: skip
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it; no database is asked.")
@click.option("--since", metavar="REVISION", help="With --sql: print only what comes after this revision.")
@json_option
@click.pass_context
def command(context: click.Context, names: str, as_sql: bool, since: str | None, as_json: bool) -> None:
    """Bring the database's schema to this version.

    Migrations only go forward, in one transaction. Several replicas may run this at once: the second waits, and finds
    nothing left to do. Rights that roles have lost, as by a restore without grants, are granted again each time.

    Systems may have databases of their own: --for names those whose tables belong in this one. The engine's tables are
    in every database.
    """
    owners = chains.parse(names)
    if since is not None and not as_sql:
        raise click.UsageError("--since goes with --sql: a database knows its own revision")
    if as_sql:
        click.echo(chains.as_sql(owners, since))
        return
    settings = wiring.settings(context)
    granted: list[str] = []
    role = roles.needed("migrate")
    moves = chains.upgrade(lambda: postgres.connect(settings, "migrate", role=role), owners, granted.append)
    for statement in granted:
        say(f"a right was missing: {statement}")
    with postgres.connect(settings, "migrate") as connection:
        for what, remedy in (*chains.unmade_roles(connection), *chains.doors(connection)):
            say(f"{what}: {remedy}")
    cells = ((each["chain"] or "", each["from"] or "-", each["to"] or "-") for each in moves)
    answer = CommandResult({"chains": moves, "granted": granted}, tabled(("chain", "from", "to"), cells))
    answer.print(as_json=as_json)
