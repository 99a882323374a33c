"""The inbox: what each consumer has handled, what it could not, and where it was when it last ended."""

from ferryman.migrations import scripts

revision = "engine_0006"
down_revision = "engine_0005"


def upgrade() -> None:
    scripts.execute(__file__)
