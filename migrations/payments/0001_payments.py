"""Payments: the requests, and the machine that they go through."""

from ferryman.migrations import scripts

revision = "payments_0001"
down_revision = None


def upgrade() -> None:
    scripts.execute(__file__)
