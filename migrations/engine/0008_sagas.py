"""Sagas: what their tables refuse, and the results that were applied to nothing."""

from ferryman.migrations import scripts

revision = "engine_0008"
down_revision = "engine_0007"


def upgrade() -> None:
    scripts.execute(__file__)
