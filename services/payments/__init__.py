"""Payments: recorded first, then carried out by the wallet, each with exactly one end."""

from ferryman import System

SYSTEM = System(
    name="payments",
    owner="payments",
    settings={"payments": "ferryman.services.payments.payments_settings:PaymentsSettings"},
    runs={
        "payments": (
            "ferryman.services.payments.service:payments",
            "carries payments out: applies results, and cancels operations that are not answered in time",
        )
    },
    routes="ferryman.services.payments.api:router",
    machines=("ferryman.services.payments.rules:MACHINE",),
    outboxes="ferryman.services.payments.payments_settings:outboxes",
    outboxes_need='payments.mode = "literal"',
    databases={"wallet": "payments.wallet_database_url"},
    catalogue=True,
    evidence="ferryman.services.payments.evidence:CASE",
)
