"""What people do to consumers is audited beside what they do to the outbox, and needs the consumer's role alone."""

from ferryman.migrations import scripts

revision = "engine_0007"
down_revision = "engine_0006"


def upgrade() -> None:
    scripts.execute(__file__)
