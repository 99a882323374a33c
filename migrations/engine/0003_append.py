"""Appending in SQL, for one entry and for many, and the keys that make a repeated append one."""

from ferryman.migrations import scripts

revision = "engine_0003"
down_revision = "engine_0002"


def upgrade() -> None:
    scripts.execute(__file__)
