"""The settings under [wallet]."""

from ferryman import Section, setting


class WalletSettings(Section):
    """The settings of `ferryman run wallet`."""

    events: bool = setting(
        False, "Whether changes of balances are published on `wallet.events`: one more entry for each change.",
        danger="without them, that topic stays silent",
    )  # fmt: skip
