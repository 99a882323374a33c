"""The journal: the outbox with its ring of segments, the windows and cursors of the relay."""

from ferryman.migrations import scripts

revision = "engine_0002"
down_revision = "engine_0001"


def upgrade() -> None:
    scripts.execute(__file__)
