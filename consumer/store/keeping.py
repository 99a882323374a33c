"""What is looked at now and then: pauses, and receipts that are old enough to be forgotten."""

from ferryman.consumer.store.receipts import Connection

_PAUSED = """\
-- consumer.paused
SELECT EXISTS (SELECT FROM ferryman.inbox_paused WHERE consumer = %(consumer)s)
"""

# A plan that was made while a table was small would be kept while it grows: here and in the handlers.
_FORGET_PLANS = "-- consumer.forget_plans\nDISCARD PLANS"

_REJECTED = """\
-- consumer.count_rejected
SELECT count(*) FROM ferryman.inbox_rejected WHERE consumer = %(consumer)s AND status = 'REJECTED'
"""

# A little at a time, so that a batch never waits for long.
_FORGET = """\
-- consumer.forget
DELETE FROM ferryman.inbox i
WHERE i.consumer = %(consumer)s AND i.id = ANY (ARRAY(
    SELECT o.id FROM ferryman.inbox o
    WHERE o.consumer = %(consumer)s AND o.received_at < statement_timestamp() - make_interval(secs => %(seconds)s)
      AND o.status NOT IN ('REJECTED', 'REOPENED')
    ORDER BY o.received_at LIMIT %(most)s
))
"""

# What a person has decided about, with the receipt of what was given up; what waits for one is kept.
_FORGET_SETTLED = """\
-- consumer.forget_settled
WITH settled AS (
    DELETE FROM ferryman.inbox_rejected r
    USING (
        SELECT o.topic, o.partition, o."offset" FROM ferryman.inbox_rejected o
        WHERE o.consumer = %(consumer)s AND o.status <> 'REJECTED'
          AND o.changed_at < statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY o.rejected_at LIMIT %(most)s FOR UPDATE
    ) old
    WHERE r.consumer = %(consumer)s
      AND (r.topic, r.partition, r."offset") = (old.topic, old.partition, old."offset")
    RETURNING r.id
), receipts AS (
    DELETE FROM ferryman.inbox i
    WHERE i.consumer = %(consumer)s AND i.id IN (SELECT id FROM settled) AND i.status = 'REJECTED'
      AND i.received_at < statement_timestamp() - make_interval(secs => %(seconds)s)
      AND NOT EXISTS (SELECT FROM ferryman.inbox_rejected w
                      WHERE w.consumer = i.consumer AND w.id = i.id AND w.status = 'REJECTED')
)
SELECT count(*) FROM settled
"""
MOST = 10_000


def paused(connection: Connection, consumer: str) -> bool:
    row = connection.execute(_PAUSED, {"consumer": consumer}).fetchone()
    return bool(row and row[0])


def forget_plans(connection: Connection) -> None:
    """The statements that were prepared stay; each is planned anew when it is used next."""
    connection.execute(_FORGET_PLANS)


def rejected(connection: Connection, consumer: str) -> int:
    """How many messages wait for a person."""
    row = connection.execute(_REJECTED, {"consumer": consumer}).fetchone()
    return int(row[0]) if row else 0


def forget(connection: Connection, consumer: str, seconds: float) -> int:
    """How many receipts were old enough, `MOST` where more may be; 0 seconds keeps them for ever."""
    if not seconds:
        return 0
    meant = {"consumer": consumer, "seconds": seconds, "most": MOST}
    return connection.execute(_FORGET, meant).rowcount


def forget_settled(connection: Connection, consumer: str, seconds: float) -> int:
    """The same, of rejected records that nobody has to decide about any more."""
    if not seconds:
        return 0
    row = connection.execute(_FORGET_SETTLED, {"consumer": consumer, "seconds": seconds, "most": MOST}).fetchone()
    return int(row[0]) if row else 0
