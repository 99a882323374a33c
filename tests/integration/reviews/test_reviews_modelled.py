"""Jobs and deliveries on real tables, driven at random: messages are lost, repeated and reordered; people act."""

from collections.abc import Callable, Iterator, Mapping, MutableSequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferryman import Received, use_schemas
from ferryman.schemas import active
from ferryman.services.notifier.deliveries import NOTIFY
from ferryman.services.reviews.acts import ActRefused
from support.reviewing import RESULTS, Database, NotifierDesk, ReviewsDesk, appended, not_notified, notified, received

T = TypeVar("T")
STEPS = ("create", "rerun", "due", "command", "command", "lose command", "repeat command", "accept", "accept", "refuse",
         "result", "result", "lose result", "repeat result", "again", "replace", "drop")  # fmt: skip
PEOPLE = [f"{name}@example.com" for name in ("ada", "ben", "cat")]

# Each query returns the jobs that break a rule.
RULES = {
    "6.5: succeeded when each required recipient was told, and only then": """
        SELECT j.id FROM reviews.jobs j WHERE (j.status = 'succeeded') = EXISTS (
            SELECT FROM reviews.recipients r WHERE r.job_id = j.id AND r.required AND r.notified_at IS NULL)
    """,
    "6.5: a job waits for a person only if nothing goes on by itself": """
        SELECT j.id FROM reviews.jobs j WHERE j.status <> 'succeeded' AND (j.status = 'in_progress') <> EXISTS (
            SELECT FROM reviews.recipients r WHERE r.job_id = j.id AND r.status = 'waiting')
    """,
    "6.4: nobody counts as told without a mark in the notifier": """
        SELECT r.job_id FROM reviews.recipients r JOIN reviews.jobs j ON j.id = r.job_id
        WHERE r.notified_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM notifier.deliveries d WHERE d.status = 'sent'
            AND (d.changelist_id, d.recipient, d.review_version) = (j.changelist_id, r.recipient, j.review_version))
    """,
    "an event for each job that succeeded": """
        SELECT gen_random_uuid() WHERE (SELECT count(*) FROM reviews.jobs WHERE status = 'succeeded') <> (
            SELECT count(*) FROM ferryman.outbox o WHERE o.type = 'review.succeeded')
    """,
}
BROKEN = " UNION ALL ".join(f"SELECT '{rule}', broken.* FROM ({query}) broken" for rule, query in RULES.items())


@dataclass
class ReviewModel:
    """Both services, what is on its way between them, and a provider that accepts or refuses."""

    db: Database
    change: str
    told: int
    commands: list[dict[str, Any]] = field(default_factory=list)
    results: list[Received] = field(default_factory=list)
    accepted: list[tuple[str, int]] = field(default_factory=list)
    version: int = 0

    def __post_init__(self) -> None:
        self.desk, self.notifier = ReviewsDesk(self.db), NotifierDesk(self.db, "")

    def step(self, name: str, pick: int) -> None:
        verb = name.partition(" ")[0]
        queue: MutableSequence[Any] = self.results if "result" in name else self.commands
        match verb:
            case "create" | "rerun":
                self.version += verb == "rerun" or not self.version
                people = PEOPLE[: 1 + pick % 3]
                self.desk.create(*people, changelist_id=self.change, review_version=self.version, rerun=True,
                                 idempotency_key=f"{self.change}/{self.version}/{pick}")  # fmt: skip
            case "due":
                self.desk.due()
            case "command" | "result" | "lose" | "repeat" if queue:
                taken = queue[pick % len(queue)] if verb == "repeat" else queue.pop(pick % len(queue))
                if verb != "lose":
                    self.deliver(taken)
            case "accept" | "refuse":
                self.provide(verb, pick)
            case "again" | "replace" | "drop":
                self.correct(verb, pick)
        sent = appended(self.db, NOTIFY)
        self.commands += [data for _, data in sent[self.told :]]
        self.told = len(sent)

    def deliver(self, taken: Mapping[str, Any] | Received) -> None:
        if isinstance(taken, Received):
            self.desk.apply(taken)
        else:
            self.notifier.tell(taken)
            self.results += [received(kind, data, RESULTS) for kind, data in self.notifier.told]

    def provide(self, verb: str, pick: int) -> None:
        """End a delivery that is queued as the courier does."""
        queued = self.rows("SELECT id FROM notifier.deliveries WHERE status = 'queued' ORDER BY created_at, id")
        if not queued:
            return
        sets = "status = 'sent', notified_at = now()" if verb == "accept" else "status = 'failed', error = 'refused'"
        [(job, recipient, version)] = self.rows(
            f"UPDATE notifier.deliveries SET {sets} WHERE id = %s RETURNING job_id, recipient, review_version",
            queued[pick % len(queued)][0],
        )
        if verb == "accept":
            self.accepted.append((recipient, version))
        make: Callable[..., Received] = notified if verb == "accept" else not_notified
        self.results.append(make(job, recipient, version=version, changelist_id=self.change))

    def correct(self, act: str, pick: int) -> None:
        rows = self.rows("SELECT job_id, recipient FROM reviews.recipients ORDER BY job_id, recipient")
        if rows:
            more = {"by": f"other-{pick % 2}@example.com"} if act == "replace" else {}
            with suppress(ActRefused):
                job, recipient = rows[pick % len(rows)]
                self.desk.correct(job, recipient, act, **more)

    def finish(self) -> None:
        """Let everything go on as it would in the end: nothing is lost any more, and the provider accepts."""
        for _ in range(20):
            for job, recipient in self.rows("SELECT job_id, recipient FROM reviews.recipients WHERE status = 'failed'"):
                self.desk.correct(job, recipient, "again")
            self.step("due", 0)
            while self.commands:
                self.step("command", 0)
            while self.rows("SELECT id FROM notifier.deliveries WHERE status = 'queued'"):
                self.step("accept", 0)
            while self.results:
                self.step("result", 0)
            if not self.rows("SELECT id FROM reviews.jobs WHERE status <> 'succeeded'"):
                return
        raise AssertionError("a job never ended")

    def rows(self, query: str, *given: Any) -> list[tuple[Any, ...]]:
        return self.db.execute(query.encode(), given).fetchall()


@pytest.fixture
def db(ferryman_db: Database) -> Iterator[Database]:
    use_schemas()
    yield ferryman_db
    active.forget()


def drive(db: Database, steps: list[tuple[str, int]]) -> None:
    """Take these steps, and let everything end: the rules hold after each, and nobody was told twice."""
    db.execute("TRUNCATE reviews.changelists, notifier.deliveries, ferryman.saga_stray")
    db.execute("ALTER TABLE reviews.jobs DISABLE TRIGGER USER")
    db.execute("DELETE FROM reviews.jobs")
    db.execute("ALTER TABLE reviews.jobs ENABLE TRIGGER USER")
    db.execute("DELETE FROM ferryman.outbox")
    model = ReviewModel(db, "CL-4711", 0)
    for name, pick in steps:
        model.step(name, pick)
        assert db.execute(BROKEN.encode()).fetchall() == [], name
    model.finish()
    assert db.execute(BROKEN.encode()).fetchall() == []
    assert len(model.accepted) == len(set(model.accepted)), "somebody was told twice of one version"


RANDOM = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), min_size=10, max_size=40)
FIXTURE = [HealthCheck.function_scoped_fixture]


@settings(max_examples=30, deadline=None, suppress_health_check=FIXTURE, derandomize=True)
@given(steps=RANDOM)
def test_rule_10_3_a_few_random_ways_tell_everybody_once(db: Database, steps: list[tuple[str, int]]) -> None:
    drive(db, steps)


@pytest.mark.prove
@settings(max_examples=300, deadline=None, suppress_health_check=FIXTURE)
@given(steps=RANDOM)
def test_rule_10_3_many_random_ways_tell_everybody_once(db: Database, steps: list[tuple[str, int]]) -> None:
    drive(db, steps)
