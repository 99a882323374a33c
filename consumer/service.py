"""The service of a consumer, as `ferryman run` runs it: a member of its group, and a connection at a time.

Between turns it does its housekeeping on the loop's connection: pauses, old receipts, gauges, the dedupe window.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg
import structlog

from ferryman.consumer import metrics
from ferryman.consumer.after_commit import AfterCommitThread
from ferryman.consumer.api import Consumer
from ferryman.consumer.at_most_once import loop_of
from ferryman.consumer.connections import Deadline, check_deadline, handler_connection
from ferryman.consumer.kafka.consumer_topics import check_dedupe_window, retry_topic
from ferryman.consumer.kafka.group import GroupMember
from ferryman.consumer.kafka.orphans import OrphanWatch
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.store import consumers, receipts
from ferryman.consumer.store.receipts import Connection, Limits
from ferryman.consumer.transaction import Transactions
from ferryman.migrations import chains, rights
from ferryman.runtime import postgres, roles
from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient
from ferryman.runtime.life import Before, Life, no_hook
from ferryman.runtime.settings import Settings
from ferryman.runtime.supervised import supervise

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
_KEEP_SECONDS = 60.0
_CHECK_AGAIN_SECONDS = 5.0


class ConsumerService:
    """One process's member of a consumer's group. `owners` are the owners of the tables that must exist."""

    def __init__(
        self, consumer: Consumer, settings: Settings, before: Before = no_hook, owners: Sequence[str] = (chains.ENGINE,)
    ) -> None:
        self.name = name = consumer.name
        self._consumer = consumer
        self._settings = settings
        self._owners = owners
        given, database = settings.consumer, settings.database
        topics = [*consumer.topics, *(retry_topic(each, name) for each in consumer.topics)]
        self._orphans = OrphanWatch(name, topics, settings.kafka)
        on_assigned = self._orphans.look_soon if given.instance_id else lambda: None
        self._partitions = Partitions(
            name, given.buffer_bytes, given.batch_messages, on_assigned, goes_back=consumer.mode == "effectively_once"
        )
        self._group = GroupMember(name, topics, settings.kafka, self._partitions, given.start, given.instance_id)
        self._after_commit = AfterCommitThread(name, consumer.callbacks, given.buffer_bytes)
        limits = Limits(
            postgres.milliseconds(database.statement_timeout_seconds),
            postgres.milliseconds(database.lock_timeout_seconds),
            postgres.milliseconds(database.idle_in_transaction_timeout_seconds),
        )
        transactions = Transactions(
            consumer, given.batch_messages, Deadline(given.deadline_seconds), limits, before, self._after_commit.submit
        )
        self._loop = loop_of(consumer)(consumer, self._group, given, self._partitions, transactions, before=before)
        self._housekeeping = Housekeeping(consumer, settings, self._group, self._partitions)
        self._stopped_by: FerrymanError | None = None

    def run(self, life: Life) -> None:
        """Run until it should stop; then finish the batch in hand, and give up every partition."""
        if not self._consumer.handlers:  # it would skip everything
            raise Permanent(f"the consumer {self.name} has no handlers", remedy="@consumer.handles(type)")
        check_deadline(self._settings)
        self._group.open()
        try:
            supervise(life.stopping, self._connected, partial(self._serve, life), partial(self._interrupted, life))
        finally:
            self._orphans.close()
            self._group.close()
            self._after_commit.close()
        if self._stopped_by is not None:
            raise self._stopped_by

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        role = roles.needed(roles.RUN_CONSUMER)
        with postgres.connect(self._settings, self.name, autocommit=True, role=role) as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            chains.check(connection, self._owners)
            rights.check_name(connection, "consumer", self.name)
            yield connection

    def _serve(self, life: Life, connection: Connection, succeeded: Callable[[], None]) -> None:
        """Take turns until it should stop, or until a person has to act; then give up the partitions.

        They are given up while there is a connection: marks that stay would look as if a message had killed the owner.
        `supervise` would retry a Misconfigured, but here that is a table of the runtime's that is missing, or a dedupe
        window that is too short: it is raised at the end.
        """
        try:
            with postgres.translated():
                self._take_turns(life, connection, succeeded)
        except (Misconfigured, Permanent) as error:
            self._stopped_by = error
        self._group.close()

    def _take_turns(self, life: Life, connection: Connection, succeeded: Callable[[], None]) -> None:
        lent = handler_connection(self._consumer.connection, connection)
        self._partitions.look_again()  # it may be another server, or the same one after a restore
        while not life.stopping.is_set():
            self._housekeeping.run(connection)
            self._loop.turn(lent, paused=self._housekeeping.paused)
            succeeded()
            self._housekeeping.measure()
            life.progress()
            if self._group.problem:
                life.not_ready(self._group.problem)
            elif self._housekeeping.window_problem:
                life.not_ready(self._housekeeping.window_problem)
            elif self._housekeeping.paused:
                life.not_ready("paused: `ferryman resume` goes on")
            elif problem := self._partitions.problem:
                life.not_ready(problem)
            else:
                life.ready()

    def _interrupted(self, life: Life, problem: FerrymanError, seconds: float) -> None:
        """Wait before the next connection, and poll Kafka meanwhile, so that the partitions stay ours."""
        until = time.monotonic() + seconds
        self._report(life, problem, seconds)
        while (left := until - time.monotonic()) > 0 and not life.stopping.is_set():
            try:
                self._group.hold(self._partitions.fed())
                self._partitions.add(self._group.take(self._settings.consumer.batch_messages, min(left, 0.1)))
                self._housekeeping.measure()
            except Transient as error:
                self._report(life, error, left)
                life.wait(min(left, 0.1))
            life.progress()

    def _report(self, life: Life, problem: FerrymanError, seconds: float) -> None:
        """Log an interruption. If the group member broke, join as a new one: what it fetched comes again."""
        self._partitions.forgive()
        if self._group.broken:
            self._group.open()
            self._partitions.drop(set(self._partitions.by_place))
        life.not_ready(str(problem))
        log.warning("interrupted", consumer=self.name, error=str(problem)[:500],
                    again_in_seconds=round(seconds, 1))  # fmt: skip


@dataclass(slots=True)
class Housekeeping:
    """The housekeeping of one member of a group."""

    consumer: Consumer
    settings: Settings
    group: GroupMember
    partitions: Partitions
    paused: bool = False
    """True if somebody paused the consumer."""
    window_problem: str | None = None
    """The reason why receipts are forgotten too early, if that came to be while this process runs."""
    _window_known: bool = False
    _window_checked: bool = True
    """False if the cluster does not tell how long its topics keep records."""
    _look_at: float = 0.0
    _lag_at: float = 0.0
    _check_at: float = 0.0
    _forget_at: float = 0.0

    def run(self, connection: Connection) -> None:
        """Do what is due."""
        now, name = time.monotonic(), self.consumer.name
        if now >= self._check_at:
            self._check_at = now + _KEEP_SECONDS
            # Asking a cluster that is away would hold everything up; one that did not tell is asked again soon.
            if self.group.problem is not None or not self._check_window():
                self._check_at = now + _CHECK_AGAIN_SECONDS
            metrics.REJECTED.labels(name).set(consumers.count_rejected(connection, name))
        if now >= self._forget_at:
            kept = self.settings.consumer.receipts_retention_seconds
            forgotten = receipts.forget_receipts(connection, name, kept)
            receipts.forget_settled(connection, name, kept)
            self._forget_at = now + (_KEEP_SECONDS if forgotten < receipts.MOST_FORGOTTEN else _LOOK_SECONDS)
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self.group.probe()
            self.paused = consumers.is_paused(connection, name)
            receipts.forget_plans(connection)

    def measure(self) -> None:
        """Set the gauges of what waits. It needs no database."""
        name = self.consumer.name
        metrics.LAST_POLL.labels(name).set_to_current_time()
        metrics.PARTITIONS.labels(name).set(len(self.partitions.by_place))
        metrics.LAG_SECONDS.labels(name).set(self.partitions.oldest_age_seconds(time.time()))
        if time.monotonic() >= self._lag_at:
            self._lag_at = time.monotonic() + _LOOK_SECONDS
            metrics.LAG.labels(name).set(sum(self.group.lag(self.partitions.positions).values()))

    def _check_window(self) -> bool:
        """Return True if the dedupe window could be checked; log once if it could not, or is too short by now.

        A window that is too short from the start ends the process. Later, the danger is a window away, and a process
        that ended could not be started again.
        """
        name, problem = self.consumer.name, None
        try:
            checked = check_dedupe_window(self.settings, self.consumer)
        except Misconfigured as error:
            if not self._window_known:
                raise
            checked, problem = True, str(error)
        self._window_known |= checked
        if problem and self.window_problem is None:
            log.error("the dedupe window is too short", consumer=name, error=problem)
        if self._window_checked and not checked:
            log.warning(
                "the dedupe window is not checked", consumer=name, topics=self.consumer.topics,
                remedy="let it describe its topics' configurations",
            )  # fmt: skip
        self._window_checked = checked
        if checked:
            self.window_problem = problem
            metrics.WINDOW_SHORT.labels(name).set(problem is not None)
        return checked
