"""The channel of docs/couriers.md runs as it is written there, by the real command line."""

import json
import re
from collections import Counter

from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Answer, ReceivedRequest, Receiver
from support.compose import ROOT
from support.launch import Launcher

PAGE = (ROOT / "docs" / "couriers.md").read_text()
SECTION = PAGE.split("## A channel of your own: text messages")[1]


def block(language: str, page: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert found
    return found[1]


def test_documented_channel_sends_each_text_message_and_says_what_became_of_it(
    ferryman: Launcher, ferryman_database_url: str, ferryman_db: Connection
) -> None:
    """N1, N3, N10: a failure is tried again with the same id, and one message delays no other."""
    (ferryman.folder / "shop").mkdir()
    (ferryman.folder / "shop" / "sms.py").write_text(block("python", SECTION))
    (ferryman.folder / "ferryman.toml").write_text(
        block("toml", SECTION) + "retry = { limit = 2, base_seconds = 0.05 }"
    )
    ferryman_db.execute(block("sql", PAGE).replace("shop.hooks", "shop.sms"))
    for number in ("+1 busy", "+2 unknown", "+3 cut", "+4 fine"):
        ferryman_db.execute(
            "INSERT INTO shop.sms (destination, payload) VALUES (%s, %s)", (number, json.dumps({"text": "Your code"}))
        )
    came: Counter[str] = Counter()

    def answer(request: ReceivedRequest) -> Answer:
        message = json.loads(request.body)
        assert set(message) == {"id", "to", "text"}
        came[message["to"]] += 1
        if message["to"] == "+3 cut" and came["+3 cut"] == 1:
            raise ConnectionError
        return Answer({"+1 busy": 503, "+2 unknown": 404}.get(message["to"], 202), b"sms-7")

    with Receiver(answer) as gateway:
        env = {"FERRYMAN_DATABASE_URL": ferryman_database_url, "SMS_GATEWAY": gateway.url}
        running = ferryman.start("run", "sms", env=env)
        ended = "SELECT count(*) = 4 FROM shop.sms WHERE status IN ('SENT', 'DEAD')"
        running.until(lambda: ferryman_db.execute(ended).fetchone() == (True,), "end")
        rows = ferryman_db.execute("SELECT destination, status, attempts, error FROM shop.sms ORDER BY 1").fetchall()
    assert rows == [
        ("+1 busy", "DEAD", 2, "the gateway answered 503"), ("+2 unknown", "DEAD", 1, "the gateway answered 404"),
        ("+3 cut", "SENT", 1, None), ("+4 fine", "SENT", 0, None),
    ]  # fmt: skip
    assert came == {"+1 busy": 2, "+2 unknown": 1, "+3 cut": 2, "+4 fine": 1}
    assert len({json.loads(each.body)["id"] for each in gateway.requests}) == 4
    told = ferryman_db.execute("SELECT reference FROM ferryman.outbox_attempt WHERE outcome = 'delivered'").fetchall()
    assert told == [("sms-7",)] * 2
