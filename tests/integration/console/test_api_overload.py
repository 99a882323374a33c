"""N10: the API under more requests than it can answer: it refuses some soon, and answers the others as if alone."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from ferryman.console import gate
from support import asking
from support.asking import Running, payment, running, settings, token
from support.pace import slowness
from support.paying import Desk

# Each payment takes 100 ms of one of two connections: 20 payments a second, however busy the machine is.
SLOW_PAYMENTS = """
CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON payments.requests FOR EACH ROW EXECUTE FUNCTION be_slow();
"""
FEW, MANY = 4, 80
AGAIN_SECONDS = 1.0
IN_TIME_SECONDS = 2.5
"""So long a client waits for its answer. If nothing was refused, many clients would wait 4 s each."""


class Load(NamedTuple):
    """The number of answers by status, and how many payments were recorded and answered in a second."""

    answers: Counter[int | str]
    goodput: float


@pytest.fixture
def api(desk: Desk, ferryman_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    desk.db.execute(SLOW_PAYMENTS)
    monkeypatch.setattr(gate, "MOST_AT_ONCE", 20)
    monkeypatch.setattr(gate, "SLOT_SECONDS", 0.5)
    with running(settings(ferryman_database_url, database={"pool_max": 2})) as made:
        asking.until(lambda: made.life.why_not_ready is None)
        yield made


def load(api: Running, clients: int, seconds: float) -> Load:
    """Let so many clients send payments, each one after the other."""
    answers, slow = Counter[int | str](), slowness()

    async def measure() -> float:
        loop = asyncio.get_running_loop()
        until, patience = loop.time() + seconds, IN_TIME_SECONDS * max(1.0, slow)
        sending = [asyncio.create_task(_client(api, answers, until, patience)) for _ in range(clients)]
        await asyncio.sleep(seconds)
        goodput = answers[201] / seconds
        await asyncio.gather(*sending)
        return goodput

    return Load(answers, asyncio.run(measure()))


async def _client(api: Running, answers: Counter[int | str], until: float, patience: float) -> None:
    while asyncio.get_running_loop().time() < until:
        try:
            async with asyncio.timeout(patience):
                status = await _pay(urlsplit(api.service.url or "").port)
        except TimeoutError:
            status = "late"
        answers[status] += 1
        if status != 201:
            await asyncio.sleep(AGAIN_SECONDS)


async def _pay(port: int | None) -> int | str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = json.dumps(payment()).encode()
        writer.write(
            b"POST /payments HTTP/1.1\r\nHost: api\r\nConnection: close\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s" % (token("shop").encode(), len(body), body)
        )
        return int((await reader.read()).split(maxsplit=2)[1])
    finally:
        writer.close()


def test_overload_keeps_the_goodput_and_answers_in_time_what_it_accepts(api: Running) -> None:
    alone = load(api, FEW, 1.5)
    crowded = load(api, MANY, 3.0)
    assert set(alone.answers) == {201}
    assert set(crowded.answers) == {201, 503}
    assert crowded.goodput > alone.goodput / 2, (alone, crowded)
