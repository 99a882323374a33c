"""`ferryman migrate`"""

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, print_table
from ferryman.migrations import chains
from ferryman.runtime import postgres


@click.command("migrate")
@click.option("--for", "names", default=chains.ENGINE, show_default=True, metavar="NAMES",
              help=f"Whose tables: {', '.join(chains.owners())}, comma-separated, or all.")  # fmt: skip
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it; no database is asked.")
@click.option("--since", metavar="REVISION", help="With --sql: only what comes after this revision.")
@json_option
@click.pass_context
def command(context: click.Context, names: str, as_sql: bool, since: str | None, as_json: bool) -> None:
    """Bring the database's schema to this version.

    It only goes forward, in one transaction, and may be run at any time and by several replicas at once: whoever comes
    second waits, and finds nothing left to do. Services may live in databases of their own: name with --for what
    belongs in this one. The engine's tables are in every one.
    """
    owners = chains.parse(names)
    if since is not None and not as_sql:
        raise click.UsageError("--since goes with --sql: a database knows its own revision")
    from ferryman.migrations import upgrade

    if as_sql:
        click.echo(upgrade.as_sql(owners, since))
        return
    settings = wiring.settings(context)
    moves = upgrade.upgrade(lambda: postgres.connect(settings, "migrate"), owners)
    if as_json:
        print_json({"chains": moves})
    else:
        print_table(
            ("chain", "from", "to"), [(each["chain"] or "", each["from"] or "-", each["to"] or "-") for each in moves]
        )
