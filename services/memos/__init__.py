"""Memos: each is recorded with the e-mail about it, and a worker sends the e-mail."""

from ferryman import System

SYSTEM = System(
    name="memos",
    owner="memos",
    settings={"memos": "ferryman.services.memos.memos_settings:MemosSettings"},
    runs={
        "memos": (
            "ferryman.services.memos.worker:worker",
            "sends the e-mails of memos.email_outbox by the provider that [email] names",
        )
    },
    routes="ferryman.services.memos.memos_api:router",
    outboxes="ferryman.services.memos.memos_settings:outboxes",
    outboxes_need="email.provider",
)
