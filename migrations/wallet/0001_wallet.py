"""The wallet: balances, the operations that were decided, and the ledger of those that moved money."""

from ferryman.migrations import scripts

revision = "wallet_0001"
down_revision = None


def upgrade() -> None:
    scripts.execute(__file__)
