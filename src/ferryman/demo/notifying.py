"""The reviews demo: the notifier is killed, a wrong recipient is replaced, and a new version is told.

The provider judges: it has its own record of the mails that it sent.
"""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import psycopg

from ferryman import use_schemas
from ferryman.demo.stage import DemoStage, until
from ferryman.migrations.chains import ENGINE
from ferryman.schemas import OURS
from ferryman.schemas.catalogue import load
from ferryman.schemas.cluster_topics import ClusterTopics
from ferryman.services.reviews.acts import Correction, correct
from ferryman.services.reviews.jobs import ReviewConflict, ReviewRequest, create_job
from ferryman.services.reviews.orchestrator import rules_of
from ferryman.services.reviews.reviews_settings import ReviewsSettings
from ferryman.testing import places, stack
from ferryman.testing.parts import Reach
from ferryman.testing.process import Process
from ferryman.testing.receiver import Answer, ReceivedRequest
from ferryman.testing.resend import KEY, ResendServer, SentMail, refusal

RECIPIENTS = 40
WRONG, RIGHT = "reader-3@example.con", "reader-3@example.com"
ROLES = {
    "reviews": {
        "relay": "ferryman_relay",
        "reviews": "ferryman_reviews",
        "writer": "ferryman_review_writer",
        "monitor": "ferryman_monitor",
    },
    "notifier": {"relay": "ferryman_relay", "notifier": "ferryman_notifier", "monitor": "ferryman_monitor"},
}
"""The roles of the processes and persons in each database."""
_CHANGE = "CL-4711"
_KILLED_AT = 8
_DEAD_SECONDS = 0.7

_JOB = "-- demo.job\nSELECT status FROM reviews.jobs WHERE id = %s"
_JOBS = "-- demo.jobs\nSELECT status, count(*) FROM reviews.jobs GROUP BY status"
_REQUIRED = """\
-- demo.required
SELECT r.recipient, j.review_version FROM reviews.recipients r JOIN reviews.jobs j ON j.id = r.job_id WHERE r.required
"""
_STATUSES = "-- demo.notifications\nSELECT status, count(*) FROM notifier.deliveries GROUP BY status"
_MARKED = "-- demo.marked\nSELECT notification_id FROM notifier.deliveries WHERE notified_at IS NOT NULL"
# The lease of a killed notifier ends by itself after a minute.
_EXPIRE = """\
-- demo.expire
UPDATE notifier.deliveries SET begun_at = begun_at - interval '1 h' WHERE status = 'sending'
"""

Connection = psycopg.Connection[Any]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class NotifyingOutcome:
    """The jobs and deliveries at the end: in the databases, and as the provider has them."""

    parts: tuple[str, ...]
    ready_seconds: float
    jobs: dict[str, int]
    deliveries: dict[str, int]
    killed: int
    required: int
    """Recipients of both versions, as the jobs require them."""
    sent: int
    """Mails that the provider sent."""
    missing: int
    doubled: int
    of_others: int
    """Mails to somebody whom no job requires."""
    repeated: int
    """Mails that were asked for again after the kill, under the same key."""
    without_evidence: int
    """Deliveries marked as sent that the provider does not know."""

    @property
    def good(self) -> bool:
        """True if everybody was told once of each version, and something had been in doubt."""
        ended = self.jobs == {"succeeded": 2} and self.deliveries == {"sent": self.required, "failed": 1}
        wrong = self.missing + self.doubled + self.of_others + self.without_evidence
        return ended and self.required == 2 * RECIPIENTS and not wrong and self.killed == 1 and self.repeated >= 1

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as JSON data."""
        return {"verdict": "ok" if self.good else "wrong", **asdict(self)}


class _Provider:
    """The provider's answers: it refuses the wrong address, and calls `at_mail` before it answers one of the mails."""

    def __init__(self) -> None:
        self.at_mail: Callable[[], None] = lambda: None
        self.server = ResendServer(before=self._before, after=self._after)
        self._taken = 0
        self._guard = threading.Lock()

    def _before(self, request: ReceivedRequest) -> Answer | None:
        wrong = request.method == "POST" and WRONG in json.loads(request.body)["to"]
        return refusal(422, "validation_error", "Invalid `to` field.") if wrong else None

    def _after(self, _: ReceivedRequest) -> None:
        with self._guard:
            self._taken += 1
            if self._taken == _KILLED_AT:
                self.at_mail()


def count_mails(
    sent: Sequence[SentMail], keys: Iterable[str], required: Iterable[tuple[str, int]], marked: Iterable[str]
) -> dict[str, int]:
    """Compare the mails that the provider sent, and the keys of all requests, with what the databases say.

    `required` has the recipients of each version, `marked` the provider's ids of the deliveries that are marked.
    """
    told = Counter((each.content["to"][0], each.content["subject"]) for each in sent)
    wanted = {(recipient, subject_of(version)) for recipient, version in required}
    return {
        "required": len(wanted), "sent": len(sent), "missing": len(wanted - told.keys()),
        "doubled": len(sent) - min(len(told), len({each.key for each in sent})),
        "of_others": len(told.keys() - wanted), "repeated": sum(times > 1 for times in Counter(keys).values()),
        "without_evidence": len(set(marked) - {each.id for each in sent}),
    }  # fmt: skip


def subject_of(version: int) -> str:
    """Return the subject of the mails about a version."""
    return f"{_CHANGE}, version {version}: reviewed"


def run(reach: Reach, inherited: Mapping[str, str], tell: Tell) -> NotifyingOutcome:
    """Run the demo on servers of its own, and tell each step."""
    began = time.monotonic()
    folder = places.scratch("demo")
    try:
        with stack.open_stack(reach=reach, registry_too=False, owners=(ENGINE, "reviews")) as parts:
            urls = {"reviews": parts.database_url, "notifier": stack.new_database(parts.database_url, "notifier")}
            stack.migrate(urls["notifier"], (ENGINE, "notifier"))
            logins = {(of, name): stack.login(urls[of], name, role)
                      for of, roles in ROLES.items() for name, role in roles.items()}  # fmt: skip
            topics, catalogue = ClusterTopics(parts.settings.kafka), load(OURS)
            topics.apply(catalogue, topics.differences(catalogue), replication=1)
            ready_seconds = time.monotonic() - began
            climbs = tuple(map(str, parts.climbs))
            tell("\n".join([*climbs, f"two databases and Kafka are ready after {ready_seconds:.1f} s\n"]))
            use_schemas()
            provider = _Provider()
            with (
                provider.server as resend, psycopg.connect(urls["reviews"], autocommit=True) as db,
                psycopg.connect(urls["notifier"], autocommit=True) as notifier,
            ):  # fmt: skip
                acts = DemoStage(
                    folder, inherited, KAFKA__BOOTSTRAP_SERVERS=parts.kafka.url, KAFKA__SESSION_TIMEOUT_MS="1500",
                    KAFKA__HEARTBEAT_INTERVAL_MS="300", EMAIL__PROVIDER="resend", EMAIL__SENDER="reviews@example.com",
                    EMAIL__RESEND__URL=resend.url, EMAIL__RESEND__KEY=KEY, NOTIFIER__BASE_SECONDS="0.3",
                )  # fmt: skip
                play = _ReviewPlay({"reviews": db, "notifier": notifier}, logins, acts, provider, tell)
                try:
                    play.through()
                finally:
                    play.end()
                keys = [each.headers["idempotency-key"] for each in resend.requests if each.method == "POST"]
                marked = [each for (each,) in notifier.execute(_MARKED).fetchall()]
                return NotifyingOutcome(
                    climbs, round(ready_seconds, 2), dict(db.execute(_JOBS).fetchall()),
                    dict(notifier.execute(_STATUSES).fetchall()), play.killed,
                    **count_mails(resend.sent, keys, db.execute(_REQUIRED).fetchall(), marked),
                )  # fmt: skip
    finally:
        places.discard(folder)


class _ReviewPlay:
    """The processes and persons of the demo, each with a login and a role of its own."""

    def __init__(
        self, databases: Mapping[str, Connection], logins: Mapping[tuple[str, str], str], acts: DemoStage,
        provider: _Provider, tell: Tell,
    ) -> None:  # fmt: skip
        self._databases, self._logins, self._provider, self._tell = databases, logins, provider, tell
        self._acts = acts
        self._processes: dict[str, Process] = {"relay": acts.process("relay", "run", "relay", **self._sources("relay"))}
        for name in ROLES:
            own = {"DATABASE_URL": logins[name, name], "CONSUMER__INSTANCE_ID": f"demo-{name}"}
            self._processes[name] = acts.process(name, "run", name, **own)
        self.killed = 0

    def _sources(self, name: str) -> dict[str, str]:
        return {f"RELAY__SOURCES__{of.upper()}__DATABASE_URL": self._logins[of, name] for of in ROLES}

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()

    def through(self) -> None:
        """Play the acts."""
        readers = [WRONG, *(f"reader-{n}@example.com" for n in range(RECIPIENTS) if n != 3)]
        self._provider.at_mail = self._kill
        for process in self._processes.values():
            process.launch()
        job = self._create(3, readers)
        self._tell(f"a job tells {RECIPIENTS} people that version 3 of {_CHANGE} was reviewed; one address is wrong")
        self._survive()
        self._await(job, "retryable_failed")
        self._tell("it was started again, and asked again under the same keys, of which the provider sends each once")
        self._tell(f"the provider refused {WRONG}: the job is retryable_failed, and waits for a person")
        with psycopg.connect(self._logins["reviews", "reviews"]) as person:
            correct(person, rules_of(ReviewsSettings()), job, WRONG, Correction("replace", RIGHT))
        self._await(job, "succeeded")
        self._tell(f"{WRONG} was replaced by {RIGHT}: the job succeeded, everybody was told once")
        told = self._acts.output("trace", str(job), **self._sources("monitor"))
        self._tell(f"\n$ ferryman trace {job}\n{told}\n")
        readers[0] = RIGHT
        try:
            self._create(4, readers)
        except ReviewConflict as error:
            self._tell(f"a job of version 4 is refused: {error.message}")
        self._await(self._create(4, readers, rerun=True), "succeeded")
        self._tell("a rerun told everybody of version 4, once")

    def _create(self, version: int, readers: list[str], *, rerun: bool = False) -> UUID:
        wanted = ReviewRequest(f"ci/{version}", _CHANGE, version, readers, subject_of(version), "Please read.", rerun)
        with psycopg.connect(self._logins["reviews", "writer"]) as writer:
            return create_job(writer, wanted)[0]

    def _kill(self) -> None:
        pid = self._processes["notifier"].pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self.killed += 1

    def _survive(self) -> None:
        """Start the notifier again, once it was killed."""
        notifier = self._processes["notifier"]
        until(lambda: notifier.pid is None, "the notifier's end")
        self._tell(f"the notifier was killed with -9 when the provider had taken mail {_KILLED_AT}: it is not marked")
        time.sleep(_DEAD_SECONDS)
        self._databases["notifier"].execute(_EXPIRE)
        notifier.launch()

    def _await(self, job: UUID, status: str) -> None:
        until(lambda: self._databases["reviews"].execute(_JOB, (job,)).fetchone() == (status,), f"the job's {status}")
