"""What keeping the ring needs: keys that are forgotten by age."""

from ferryman.migrations import scripts

revision = "engine_0005"
down_revision = "engine_0004"


def upgrade() -> None:
    scripts.execute(__file__)
