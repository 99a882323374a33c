"""The denominator of a courier by SMTP: bare aiosmtplib clients send the same mails from memory, as many at once."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import aiosmtplib
import psycopg

from ferryman.channels.email.mail import Letter, letter_of, sender_of
from ferryman.channels.model import Mail
from ferryman.runtime.service import collect_less

_MAILS = """\
-- bench.mails
SELECT id::text, recipient_email, payload ->> 'subject', payload ->> 'body' FROM memos.email_outbox
ORDER BY meta_created_at, id LIMIT %s
"""


def send(task: dict[str, Any]) -> float:
    """Send the mail of every row. Return the seconds until the last reply."""
    with psycopg.connect(task["database_url"]) as connection:
        rows = connection.execute(_MAILS, (task["rows"],)).fetchall()
    sender, at = sender_of(task["sender"]), datetime.now(UTC)
    letters = [letter_of(Mail(to, subject, text, key=key), sender, 1 << 20) for key, to, subject, text in rows]
    mails = [(each.to.addr_spec, each.mime(at)) for each in letters if isinstance(each, Letter)]
    collect_less()
    return asyncio.run(_sent(mails, sender.addr_spec, task["port"], task["at_once"]))


async def _sent(mails: Sequence[tuple[str, bytes]], sender: str, port: int, at_once: int) -> float:
    left = iter(mails)
    clients = [
        aiosmtplib.SMTP(hostname="127.0.0.1", port=port, start_tls=False, local_hostname="[127.0.0.1]")
        for _ in range(at_once)
    ]

    async def send_each(client: aiosmtplib.SMTP) -> None:
        for to, mime in left:
            await client.sendmail(sender, [to], mime)

    for client in clients:
        await client.connect()
    began = time.perf_counter()
    await asyncio.gather(*map(send_each, clients))
    seconds = time.perf_counter() - began
    for client in clients:
        await client.quit()
    return seconds


if __name__ == "__main__":
    print(json.dumps({"seconds": send(json.load(sys.stdin))}))
