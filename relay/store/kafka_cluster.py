"""The Kafka cluster that an outbox is bound to: the one that its first relay publishes to."""

from ferryman.runtime import desk, postgres
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.kafka import is_built_in_id
from ferryman.runtime.postgres import Connection, value

_HAS_STATE = "-- relay.has_state\nSELECT to_regclass('ferryman.outbox_state')"
_CLUSTER = """\
-- relay.kafka_cluster
SELECT kafka_cluster FROM ferryman.outbox_state
"""

_RECORD_CLUSTER = """\
-- relay.record_kafka_cluster
UPDATE ferryman.outbox_state SET kafka_cluster = %(cluster)s WHERE kafka_cluster IS NULL
"""

_FORGET_CLUSTER = """\
-- relay.forget_kafka_cluster
UPDATE ferryman.outbox_state SET kafka_cluster = NULL
"""


def check_cluster(connection: Connection, here: str) -> None:
    """Check that this Kafka cluster is the one that entries were published to before; record the first one.

    Two relays on two clusters would each publish a part. A built-in broker is not recorded: its id does not last.
    """
    with postgres.translated(), connection.transaction():
        if value(connection.execute(_HAS_STATE)) is None:
            return  # the database has a table of the user's alone, and nothing of ours that could know
        if here and not is_built_in_id(here):
            connection.execute(_RECORD_CLUSTER, {"cluster": here})
    check_binding(connection, here)


def check_binding(connection: Connection, here: str) -> None:
    """Check that no other Kafka cluster than this one is recorded. Change nothing."""
    with postgres.translated(), connection.transaction():
        recorded = value(connection.execute(_CLUSTER))
    if here and recorded not in (None, here):
        raise Misconfigured(
            f"this outbox is published to the Kafka cluster {recorded}, and this is the cluster {here}",
            setting="kafka.bootstrap_servers",
            remedy="correct it; to move the outbox, stop its relays and run `ferryman outbox rebase --new-cluster`",
        )


def forget_cluster(connection: Connection, *, who: str, reason: str, dry_run: bool) -> str | None:
    """Let the next relay record another Kafka cluster. Return the id that is recorded until now."""
    with postgres.translated(), connection.transaction():
        recorded: str | None = value(connection.execute(_CLUSTER))
        if recorded is not None and not dry_run:
            connection.execute(_FORGET_CLUSTER)
            desk.audit(connection, "rebase", desk.Act(who, reason), said={"kafka_cluster": recorded})
    return recorded
