"""`ferryman inbox`, `pause` and `resume`, as an operator runs them beside an adopter's consumer."""

import signal
import time
from typing import Any
from uuid import UUID

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg import conninfo

from support.consuming import Shop, asked
from support.launch import Launched, Launcher
from support.operating import Operator, quickest

Database = psycopg.Connection[tuple[Any, ...]]

REJECTED = """
WITH receipt AS (
    INSERT INTO ferryman.inbox (consumer, id, status, hash, reason, type, topic, partition, "offset", error)
    SELECT %(consumer)s, gen_random_uuid(), 'REJECTED', '', %(code)s, 'order.placed', 'orders', 0, n, 'no such customer'
    FROM generate_series(1, %(count)s::integer) n RETURNING *
)
INSERT INTO ferryman.inbox_rejected
    (consumer, topic, partition, "offset", id, hash, type, key, value, headers, code, error)
SELECT consumer, topic, partition, "offset", id, hash, type, 'k', 'SECRET-VALUE',
       '[["content-type", "dGV4dC9wbGFpbg=="], ["x-token", "aHVzaA=="], ["x-raw", "/w=="]]', %(code)s, error
FROM receipt
"""


@pytest.fixture
def operator(ferryman: Launcher, ferryman_database_url: str) -> Operator:
    return Operator(ferryman, FERRYMAN_DATABASE_URL=ferryman_database_url)


@pytest.fixture
def inbox(ferryman_db: Database) -> Database:
    """Return a database with three rejected messages of `books`, and a receipt of `once` that had no effect."""
    ferryman_db.execute(REJECTED, {"consumer": "books", "code": "BUG", "count": 3})
    ferryman_db.execute(
        'INSERT INTO ferryman.inbox (consumer, id, status, hash, type, topic, partition, "offset", error) '
        "VALUES ('once', gen_random_uuid(), 'RECEIVED', '', 'order.placed', 'orders', 0, 1, 'it failed')"
    )
    return ferryman_db


@pytest.fixture
def shop(ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database) -> Shop:
    return Shop(ferryman, ferryman_kafka, ferryman_database_url, ferryman_db)


def mend(shop: Shop) -> None:
    """Install the next release of the handler, without the bug."""
    code = shop.ferryman.folder / "shop.py"
    code.write_text(code.read_text().replace('raise ValueError("a bug")', "pass"))


def one(db: Database, query: str) -> Any:
    row = db.execute(query).fetchone()
    assert row is not None
    return row[0]


def receipt(shop: Shop, identity: UUID) -> str:
    row = shop.db.execute("SELECT coalesce(outcome, status) FROM ferryman.inbox WHERE id = %s", (identity,)).fetchone()
    return str(row[0]) if row else ""


def last_poll(wallet: Launched) -> float:
    """Return when the process last polled Kafka."""
    lines = [line for line in asked(wallet, "/metrics").splitlines() if "consumer_last_poll_timestamp_seconds{" in line]
    return float(lines[0].rpartition(" ")[2])


@pytest.mark.real_kafka
@pytest.mark.slow
def test_a_requeued_message_takes_effect_once_when_the_bug_is_gone(shop: Shop) -> None:
    """N5, N11. Slow: a consumer is started twice, and has to see the topic that is created meanwhile."""
    operator = Operator(shop.ferryman, **shop.env)
    good, bad = shop.send(3), shop.send(5, do="raise")
    shop.flush()
    wallet = shop.start(FERRYMAN_CONSUMER__TRIES="1")
    wallet.until(lambda: shop.settled(2), "verdicts")
    assert (receipt(shop, good), receipt(shop, bad)) == ("DONE", "REJECTED")
    wallet.kill()
    mend(shop)
    plan = operator.run(f"inbox requeue --id {bad} --json").json
    retry = f"{shop.topic}.retry.{shop.name}"
    assert (plan["dry_run"], plan["messages"], plan["missing_topics"]) == (True, 1, [retry])
    assert receipt(shop, bad) == "REJECTED"
    wallet = shop.start(FERRYMAN_KAFKA__TOPIC_METADATA_REFRESH_INTERVAL_MS="500")
    relay = shop.ferryman.start("run", "relay", env=shop.env)
    wallet.until(lambda: one(shop.db, "SELECT count(*) FROM ferryman.inbox_start WHERE owned") >= 3, "partitions")
    done = operator.run(f"inbox requeue --id {bad} --yes --reason mended --who ann --json").json
    assert (done["messages"], done["created"]) == (1, [retry])
    assert len(AdminClient({"bootstrap.servers": shop.kafka}).list_topics(retry).topics[retry].partitions) == 3
    again = operator.run(f"inbox requeue --id {bad} --yes --reason mended", exit_code=1)
    assert "was requeued by ann" in again.stderr
    wallet.until(lambda: receipt(shop, bad) == "DONE", "the effect")
    shop.send(5, id=bad, do="raise")
    last = shop.send(1)
    shop.flush()
    wallet.until(lambda: receipt(shop, last) == "DONE", "the last verdict")
    shop.books_balance()
    assert shop.one("SELECT count(*) FROM effect WHERE payment = %s", str(bad)) == 1
    assert relay.alive
    story = operator.run(f"inbox show {bad}").stdout
    assert "it took effect, after it had been rejected and requeued" in story
    assert "REQUEUED by ann: mended" in story


@pytest.mark.real_kafka
@pytest.mark.slow
def test_a_paused_consumer_handles_nothing_until_it_is_resumed(shop: Shop) -> None:
    """Slow on a busy machine: a consumer starts, and is watched for a while."""
    operator = Operator(shop.ferryman, **shop.env)
    shop.send(1)
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(1), "a verdict")
    refused = operator.run(f"pause {shop.name}", exit_code=2)
    assert "say --consumer" in refused.stderr
    paused = operator.run(f"pause {shop.name} --consumer --reason repairs --who ann --json").json
    assert [(each["consumer"], each["who"]) for each in paused["paused"]] == [(shop.name, "ann")]
    wallet.until(lambda: "paused" in asked(wallet, "/readyz"), "the pause in its readiness")
    shop.send(1)
    shop.flush()
    later = time.time() + 1
    wallet.until(lambda: last_poll(wallet) > later, "a second of polling")
    assert not shop.settled(2)
    stats = operator.run("inbox stats").stdout
    assert f"ferryman resume {shop.name} --consumer" in stats
    operator.run(f"resume {shop.name} --consumer")
    wallet.until(lambda: shop.settled(2), "what waited")
    shop.books_balance()
    assert operator.run("inbox stats --json").json["consumers"][0]["processes"] == 1


def test_stats_show_verdicts_and_rejected_messages_of_each_consumer(operator: Operator, inbox: Database) -> None:
    found = operator.run("inbox stats --json").json["consumers"]
    assert [each["consumer"] for each in found] == ["books", "once"]
    assert set(found[0]) == {
        "consumer", "processes", "verdicts", "estimated", "rejected_waiting", "partitions", "paused",
    }  # fmt: skip
    assert found[0]["rejected_waiting"]["by_code"] == {"BUG": 3}
    assert found[1]["verdicts"]["RECEIVED"] == 1
    inbox.execute("INSERT INTO ferryman.inbox_paused (consumer, who, reason) VALUES ('books', 'ann', 'moving')")
    printed = operator.run("inbox stats").stdout
    assert "ferryman resume books --consumer" in printed
    assert "ferryman inbox list --consumer books --code BUG" in printed
    assert len(operator.run("inbox stats --consumer once --json").json["consumers"]) == 1


@pytest.mark.usefixtures("inbox")
def test_a_list_has_every_column_and_the_cursor_of_the_next_page(operator: Operator) -> None:
    found = operator.run("inbox list --json --limit 2").json
    assert [(each["consumer"], each["offset"]) for each in found["messages"]] == [("once", 1), ("books", 3)]
    assert set(found["messages"][0]) == {
        "consumer", "id", "status", "verdict", "code", "error", "type", "topic", "partition", "offset", "at",
        "value_bytes",
    }  # fmt: skip
    last = operator.run("inbox list --json --limit 2 --before", found["next"]).json
    assert [each["offset"] for each in last["messages"]] == [2, 1]
    assert last["next"] is None
    assert "--before" in operator.run("inbox list --limit 2").stderr
    assert len(operator.run("inbox list --status received --json").json["messages"]) == 1
    assert operator.run("inbox list --older-than 1h").stdout == "no messages\n"


def test_a_story_has_the_reason_and_the_next_command(operator: Operator, inbox: Database) -> None:
    identity = one(inbox, 'SELECT id FROM ferryman.inbox_rejected WHERE "offset" = 2')
    [found] = operator.run(f"inbox show {identity} --json").json["messages"]
    assert found["reason"].startswith("REJECTED (BUG): no such customer. It cannot be requeued: its header x-raw")
    assert found["next"] == "ferryman inbox discard --id orders/0/2 --consumer books"
    assert operator.run("inbox show orders/0/2 --json").json["messages"] == [found]
    headers = {each["name"]: (each["value"], each["value_base64"]) for each in found["rejected"][0]["headers"]}
    assert headers == {"content-type": ("text/plain", None), "x-token": ("***", None), "x-raw": (None, "/w==")}
    assert "hush" not in operator.run("inbox show orders/0/2").stdout
    inbox.execute("UPDATE ferryman.inbox_rejected SET headers = '[]'")
    [fit] = operator.run("inbox show orders/0/2 --json").json["messages"]
    assert "ferryman inbox requeue --id orders/0/2 --consumer books" in fit["next"]


@pytest.mark.usefixtures("inbox")
def test_only_show_payload_prints_a_value(operator: Operator) -> None:
    """N14."""
    for line in ("inbox list", "inbox stats", "inbox show orders/0/2", "inbox show orders/0/2 --json"):
        assert "SECRET-VALUE" not in operator.run(line).transcript()
    assert "SECRET-VALUE" in operator.run("inbox show orders/0/2 --payload").stdout
    shown = operator.run("inbox show orders/0/2 --payload --json").json["messages"][0]["rejected"][0]
    assert shown["value"] == "SECRET-VALUE"


def test_discarding_needs_yes_and_a_reason(operator: Operator, inbox: Database) -> None:
    assert operator.run("inbox discard --id orders/0/2 --json").json["by_code"] == {"BUG": 1}
    assert "--reason is missing" in operator.run("inbox discard --id orders/0/2 --yes", exit_code=2).stderr
    assert one(inbox, "SELECT count(*) FROM ferryman.outbox_audit") == 0
    assert operator.run("inbox discard --id orders/0/2 --yes --json --reason test").json["messages"] == 1
    assert operator.run("inbox discard --id orders/0/2 --yes --json --reason test").json["messages"] == 0
    assert one(inbox, "SELECT count(*) FROM ferryman.inbox WHERE status = 'REJECTED'") == 3
    assert "DISCARDED by" in operator.run("inbox show orders/0/2").stdout
    assert one(inbox, "SELECT act || ' ' || reason FROM ferryman.outbox_audit") == "discard test"


def test_without_a_cluster_a_requeue_says_that_the_topic_must_exist(operator: Operator, inbox: Database) -> None:
    inbox.execute("UPDATE ferryman.inbox_rejected SET headers = '[]'")
    assert operator.run("inbox requeue --code BUG --json").json["missing_topics"] is None
    done = operator.run("inbox requeue --code BUG --yes --reason mended")
    assert "3 messages of books requeued, to orders.retry.books" in done.stdout
    assert "see that orders.retry.books exists" in done.stderr
    assert one(inbox, "SELECT count(*) FROM ferryman.outbox WHERE topic = 'orders.retry.books'") == 3


def test_a_login_that_may_not_requeue_creates_no_topic(
    ferryman: Launcher, ferryman_database_url: str, inbox: Database
) -> None:
    """The topic was created before the requeue was refused."""
    inbox.execute("UPDATE ferryman.inbox_rejected SET headers = '[]'")
    url = conninfo.make_conninfo(ferryman_database_url, options="-c role=ferryman_monitor")
    refused = Operator(ferryman, FERRYMAN_DATABASE_URL=url).run(
        "inbox requeue --code BUG --yes --reason r", exit_code=3
    )
    assert "permission denied" in refused.stderr
    assert "orders.retry.books" not in refused.stderr


def test_a_place_of_several_messages_is_refused_and_their_ids_are_named(operator: Operator, inbox: Database) -> None:
    inbox.execute(REJECTED, {"consumer": "books", "code": "BUG", "count": 1})
    ids = [
        str(each) for (each,) in inbox.execute('SELECT id FROM ferryman.inbox_rejected WHERE "offset" = 1').fetchall()
    ]
    for act in ("requeue", "discard"):
        refused = operator.run(f"inbox {act} --id orders/0/1 --yes --reason r", exit_code=1)
        assert all(each in refused.stderr for each in ids)
    found = operator.run("inbox show orders/0/1 --json").json["messages"]
    assert {each["id"] for each in found} == set(ids)
    assert operator.run(f"inbox discard --id {ids[0]} --yes --reason r --json").json["messages"] == 1


def test_messages_that_cannot_be_requeued_are_left_and_listed(operator: Operator, inbox: Database) -> None:
    inbox.execute("UPDATE ferryman.inbox_rejected SET headers = '[]' WHERE \"offset\" = 1")
    done = operator.run("inbox requeue --code BUG --yes --reason mended --json", exit_code=5).json
    assert done["messages"] == 1
    assert list(done["refused"].values()) == [2]
    assert "its header x-raw is not UTF-8 text" in next(iter(done["refused"]))


MISTAKES = [
    ("inbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11", 1, "no consumer here knows"),
    ("inbox show orders/0/99", 1, "no consumer here knows orders/0/99"),
    ("inbox show nonsense", 2, "neither an id (a UUID) nor topic/partition/offset"),
    ("inbox show orders/x/1", 2, "neither an id (a UUID) nor topic/partition/offset"),
    ("inbox show orders/0/1 --consumer boks", 1, "there is no consumer boks here"),
    ("inbox list --status NONSENSE", 2, "NONSENSE"),
    ("inbox list --before yesterday", 2, "not the `next` of a page"),
    ("inbox list --older-than yesterday", 2, "write 90s, 15m"),
    ("inbox stats --consumer boks", 1, "there is no consumer boks here"),
    ("inbox stats --source elsewhere", 3, "there is no source called elsewhere"),
    ("inbox requeue", 2, "say which messages"),
    ("inbox requeue --id orders/0/99 --yes --reason r", 1, "no consumer here has rejected orders/0/99"),
    ("inbox requeue --id orders/0/99 --consumer books", 1, "the consumer books has not rejected orders/0/99"),
    ("inbox requeue --id orders/0/1", 1, "orders/0/1 cannot be requeued: its header x-raw is not UTF-8 text"),
    ("inbox requeue --code BUG --yes", 2, "--reason is missing"),
    ("inbox discard", 2, "say which messages"),
    ("inbox discard --topic orders", 1, "several consumers have rejected such messages: books, other"),
    ("inbox rebase --consumer boks", 1, "there is no consumer boks here"),
    ("inbox rebase --consumer books --topic ordrs", 1, "books has no partition of a topic ordrs in this database"),
    ("inbox nonsense", 2, "No such command"),
    ("pause books --consumer --topic", 2, "not both"),
]


@pytest.mark.parametrize(("line", "exit_code", "said"), MISTAKES)
def test_mistakes_are_reported_with_their_remedy(
    operator: Operator, inbox: Database, line: str, exit_code: int, said: str
) -> None:
    if "several" in said:
        inbox.execute(REJECTED, {"consumer": "other", "code": "BUG", "count": 1})
    ran = operator.run(line, exit_code=exit_code)
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_pausing_a_consumer_that_never_ran_works_with_a_warning(operator: Operator) -> None:
    paused = operator.run("pause walet --consumer --json")
    assert paused.json["changed"] is True
    assert "no consumer walet has run on this database yet" in paused.stderr
    assert "consumer walet" in operator.run("pause orders").stdout
    assert operator.run("resume walet --consumer --json").json["changed"] is True


@pytest.mark.parametrize("command", ["stats", "list", "show", "requeue", "discard"])
def test_the_help_of_every_command_has_examples(ferryman: Launcher, command: str) -> None:
    helped = ferryman.run("inbox", command, "--help")
    assert helped.wait() == 0
    assert f"  ferryman inbox {command}" in helped.stdout
    assert "--json" in helped.stdout


@pytest.mark.parametrize("role", ["ferryman_consumer", "ferryman_monitor"])
@pytest.mark.usefixtures("inbox")
def test_reading_works_with_each_role_that_may_read(ferryman: Launcher, ferryman_database_url: str, role: str) -> None:
    url = conninfo.make_conninfo(ferryman_database_url, options=f"-c role={role}")
    operator = Operator(ferryman, FERRYMAN_DATABASE_URL=url)
    for line in ("inbox stats", "inbox list", "inbox show orders/0/2", "inbox discard --id orders/0/2"):
        operator.run(line)
    operator.run("pause books --consumer", exit_code=0 if role == "ferryman_consumer" else 3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [30_000, pytest.param(300_000, marks=pytest.mark.prove)])
def test_reading_takes_less_than_a_second_with_many_receipts(
    operator: Operator, ferryman_db: Database, count: int
) -> None:
    """Beyond the time to start, best of five. Slow, because it is tried again on a busy machine."""
    ferryman_db.execute(
        'INSERT INTO ferryman.inbox (consumer, id, status, outcome, hash, type, topic, partition, "offset") '
        "SELECT 'books', gen_random_uuid(), 'HANDLED', 'DONE', '', 't', 'orders', 0, n "
        "FROM generate_series(1, %s) n",
        (count,),
    )
    ferryman_db.execute(REJECTED, {"consumer": "books", "code": "BUG", "count": 100})
    lines = ("inbox stats --json", "inbox list --json", f"inbox show orders/0/{count // 2} --json")
    limit = 1 + quickest(operator, "inbox list --help", below=0)
    slow = {line: seconds for line in lines if (seconds := quickest(operator, line, below=limit)) > limit}
    assert slow == {}, f"limit {limit}"


@pytest.mark.real_kafka
def test_messages_are_skipped_by_offsets_set_forwards_and_a_rebase(
    ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """Offsets alone do not skip: the position in the database wins until somebody forgets it."""
    shop = Shop(ferryman, ferryman_kafka, ferryman_database_url, ferryman_db, partitions=1)
    operator = Operator(ferryman, **shop.env)
    rebase = f"inbox rebase --consumer {shop.name} --json"
    shop.send()
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(1), "a verdict")
    assert "stop them first" in operator.run(rebase, exit_code=1).stderr
    wallet.send(signal.SIGTERM)
    assert wallet.wait() == 0
    skipped = [shop.send() for _ in range(3)]
    shop.flush()
    shop.reset_offsets(4)
    assert operator.run(rebase).json == {
        "dry_run": True, "consumer": shop.name, "topic": None, "partitions": 1
    }  # fmt: skip
    done = operator.run(rebase, "--yes", "--reason", "they were paid by hand")
    assert (done.json["dry_run"], done.json["partitions"]) == (False, 1)
    last = shop.send()
    shop.flush()
    again = shop.start()
    again.until(lambda: receipt(shop, last), "the verdict of the last")
    assert [receipt(shop, each) for each in skipped] == ["", "", ""]
    acts = ferryman_db.execute("SELECT act, reason, entries FROM ferryman.outbox_audit").fetchall()
    assert acts == [("rebase", "they were paid by hand", 1)]
