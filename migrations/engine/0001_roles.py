"""The roles of Ferryman's processes, each with what it needs and no more.

They are group roles without a login: grant one to the user a process connects as. Later revisions grant on their own
tables. Whoever migrates needs CREATEROLE, or a database administrator makes the roles beforehand.
"""

from alembic import op

revision = "engine_0001"
down_revision = None

ROLES = {
    "ferryman_writer": "appends to the outbox inside its own transactions",
    "ferryman_relay": "reads the outbox and records what was published",
    "ferryman_consumer": "keeps the inbox and appends results",
    "ferryman_monitor": "reads the views; changes nothing",
}


def upgrade() -> None:
    for role, purpose in ROLES.items():
        # Roles belong to the whole cluster: another database's migration may be making them at this moment.
        op.execute(f"""\
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN;
        COMMENT ON ROLE {role} IS 'Ferryman: {purpose}';
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        NULL;
    WHEN insufficient_privilege THEN
        RAISE insufficient_privilege USING MESSAGE =
            'role {role} is missing and this user may not create it: as an administrator, CREATE ROLE {role} NOLOGIN';
END $$""")
        op.execute(f"GRANT USAGE ON SCHEMA ferryman TO {role}")
        op.execute(f"GRANT SELECT ON ferryman.version_engine TO {role}")
