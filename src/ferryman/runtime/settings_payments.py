"""The settings under [payments] and [wallet]."""

from typing import Literal

from pydantic import SecretStr

from ferryman.runtime.setting import Seconds, Section, setting


class Payments(Section):
    """How `ferryman run payments` has payments done."""

    mode: Literal["saga", "literal"] = setting(
        "saga", "`literal`: ChancePay to the letter, without sagas (docs/literal-mode.md).",
        danger="with literal, a payment whose message is lost stays PENDING for ever, and its amount may be gone",
    )  # fmt: skip
    answer_seconds: Seconds = setting(
        300.0, "How long a participant may take to answer; then what it was asked for is cancelled.", unit="seconds",
        danger="too low, and payments fail that would have been done",
    )  # fmt: skip
    again_seconds: Seconds = setting(
        10.0, "After how long a cancellation or a refund is asked for again; it doubles each time.", unit="seconds"
    )
    longest_seconds: Seconds = setting(3600.0, "The longest time between two of them.", unit="seconds")
    most_attempts: int = setting(
        12, "How often it is asked for; then the payment waits for a person: `ferryman reconcile payments`.",
        ge=1, le=1000,
    )  # fmt: skip
    events: bool = setting(
        True, "Whether everyone is told on `payments.events`: two more entries for each payment.",
        danger="without, that topic stays silent",
    )  # fmt: skip
    wallet_database_url: SecretStr | None = setting(
        None, "The wallet's database, for those who look at both: `trace`, `reconcile` and `audit`.",
        danger="it holds a password: the name with _FILE behind it names a file that holds it instead",
    )  # fmt: skip
    internal_url: str | None = setting(
        None, "Where the wallet tells of payments in the literal mode: http(s)://host:port of the API."
    )
    internal_token: SecretStr | None = setting(
        None, "What the wallet proves itself with there: a bearer token.",
        danger="whoever has it says which payments succeeded",
    )  # fmt: skip


class Wallet(Section):
    """How `ferryman run wallet` tells of what it does."""

    events: bool = setting(
        False, "Whether everyone is told on `wallet.events` how balances change: one more entry for each change.",
        danger="without, that topic stays silent",
    )  # fmt: skip
