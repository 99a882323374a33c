"""What fails, waits, is paused or replayed, who did it, and the views that say how it stands."""

from ferryman.migrations import scripts

revision = "engine_0004"
down_revision = "engine_0003"


def upgrade() -> None:
    scripts.execute(__file__)
