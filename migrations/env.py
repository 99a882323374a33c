"""What Alembic runs for each chain: on the connection it is given, or as SQL text."""

from alembic import context

from ferryman.migrations import chains

attributes = context.config.attributes
owner: str = attributes["owner"]

context.configure(
    connection=attributes.get("connection"),
    dialect_name=None if "connection" in attributes else "postgresql",
    version_table=chains.version_table(owner),
    version_table_schema=chains.SCHEMA,
    transactional_ddl=False,  # the caller's one transaction holds every chain
)
context.run_migrations()
