"""Payments: the outbox of the literal mode."""

from ferryman.migrations import scripts

revision = "payments_0002"
down_revision = "payments_0001"


def upgrade() -> None:
    scripts.execute(__file__)
