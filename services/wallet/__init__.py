"""The wallet: takes amounts and gives them back as payments ask, each operation once."""

from ferryman import System

SYSTEM = System(
    name="wallet",
    owner="wallet",
    settings={"wallet": "ferryman.services.wallet.wallet_settings:WalletSettings"},
    runs={
        "wallet": (
            "ferryman.services.wallet.consumer:wallet_of",
            "takes amounts from wallets and gives them back, as payments ask it to",
        ),
        "wallet-literal": (
            "ferryman.services.wallet.literal_wallet:wallet",
            "the wallet of the literal mode: each message is handled at most once, and reported by HTTP",
        ),
    },
    catalogue=True,
)
