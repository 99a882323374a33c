"""Dead letters: deliveries that were given up, for a person to look at, requeue or put aside.

A dead letter is named by the id of its delivery. Each function takes a connection with a transaction open, which its
caller ends: the role `ferryman_dead_letter_operator` may do all of it, `ferryman_monitor` may look.

A letter waits until somebody decides about it. One that is requeued is over: its delivery lives on as the next
generation. One that is discarded can still be requeued, if it is named by its id.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg.rows import class_row

from ferryman.services.webhooks.webhooks_settings import WORKER

Connection: TypeAlias = "psycopg.Connection[Any]"
RowT = TypeVar("RowT")

WAITING, REQUEUED, DISCARDED = STATES = ("waiting", "requeued", "discarded")

_STATE = (
    "CASE WHEN d.requeued_as IS NOT NULL THEN 'requeued' WHEN d.discarded_at IS NOT NULL THEN 'discarded' "
    "ELSE 'waiting' END"
)
_LETTERS = f"""\
d.saga_id AS id, d.event_id, e.type AS event_type, d.subscription_id, p.active, s.generation, d.attempts,
       d.error_code, d.created_at, {_STATE} AS state, d.requeued_as, d.discarded_at, d.who, d.reason, d.id AS number
FROM webhooks.dead_letters d
JOIN webhooks.webhook_delivery_sagas s ON s.id = d.saga_id
JOIN webhooks.events e ON e.id = d.event_id
JOIN webhooks.subscriptions p ON p.id = d.subscription_id
"""
# For waiting letters in words that the planner finds the partial index by.
_SELECTED = f"""\
WHERE (%(waiting)s::boolean IS NOT TRUE OR d.requeued_as IS NULL AND d.discarded_at IS NULL)
  AND (%(state)s::text IS NULL OR {_STATE} = %(state)s)
  AND (%(ids)s::bigint[] IS NULL OR d.saga_id = ANY (%(ids)s))
  AND (%(subscription)s::bigint IS NULL OR d.subscription_id = %(subscription)s)
  AND (%(code)s::text IS NULL OR d.error_code = %(code)s)
  AND (%(event_type)s::text IS NULL OR e.type = %(event_type)s)
  AND (%(since)s::timestamptz IS NULL OR d.created_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR d.created_at < %(until)s)
"""

LIST = f"""\
-- webhooks.letters
SELECT {_LETTERS}{_SELECTED}  AND (%(before)s::bigint IS NULL OR d.id < %(before)s)
ORDER BY d.id DESC LIMIT %(most)s
"""

_PORTION = f"""\
-- webhooks.letters_to_act_on
SELECT {_LETTERS}{_SELECTED}  AND d.id > %(after)s AND d.id <= %(last)s
ORDER BY d.id LIMIT %(most)s
"""

_COUNT = f"""\
-- webhooks.count_letters
SELECT d.error_code, p.active, count(*), max(d.id)
FROM webhooks.dead_letters d
JOIN webhooks.events e ON e.id = d.event_id
JOIN webhooks.subscriptions p ON p.id = d.subscription_id
{_SELECTED}GROUP BY 1, 2
"""  # noqa: S608 - literals

_JOBS = """\
-- webhooks.jobs_of_letter
SELECT j.id, j.attempt, j.status, j.claims, j.created_at, j.completed_at, j.error
FROM webhooks.webhook_delivery_jobs j WHERE j.saga_id = %(id)s ORDER BY j.attempt
"""

_ATTEMPTS = """\
-- webhooks.attempts_of_letter
SELECT j.id AS job_id, a.began_at, a.ended_at, a.outcome, a.code, a.error, a.excerpt
FROM webhooks.webhook_delivery_jobs j
JOIN ferryman.outbox_attempt a ON a.outbox = %(worker)s AND a.row_id = j.id::text
WHERE j.saga_id = %(id)s ORDER BY a.number
"""

_GENERATIONS = """\
-- webhooks.generations_of_letter
SELECT s.id, s.generation, s.status::text, s.attempt_count AS attempts, s.final_error_code AS error_code, s.created_at,
       s.updated_at
FROM webhooks.webhook_delivery_sagas s WHERE (s.event_id, s.subscription_id) = (%(event_id)s, %(subscription_id)s)
ORDER BY s.generation
"""

_REQUEUE = """\
-- webhooks.requeue_letters
SELECT webhooks.requeue(%s, %s, %s)
"""

_NEW = """\
-- webhooks.requeued_letters
SELECT requeued_from, id FROM webhooks.webhook_delivery_sagas WHERE id = ANY (%s) ORDER BY id
"""

_DISCARD = """\
-- webhooks.discard_letters
SELECT webhooks.discard(%s, %s, %s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """The dead letters that meet all of these conditions: given up from `since` on, and before `until`."""

    ids: tuple[int, ...] | None = None
    subscription: int | None = None
    code: str | None = None
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    state: str | None = WAITING
    """None for every state."""

    def values(self) -> dict[str, Any]:
        """Return the conditions as the statements name them."""
        state = None if self.state == WAITING else self.state
        return {**asdict(self), "ids": self.ids and list(self.ids), "state": state, "waiting": self.state == WAITING}


class DeadLetter(NamedTuple):
    """A dead letter. `id` is that of its delivery."""

    id: int
    event_id: int
    event_type: str
    subscription_id: int
    active: bool
    """False if the subscription is disabled: then nothing to it is requeued."""
    generation: int
    attempts: int
    error_code: str
    created_at: datetime
    state: str
    requeued_as: int | None
    discarded_at: datetime | None
    who: str | None
    """The person who discarded it."""
    reason: str | None
    number: int
    """Its place among all letters, which pages go by."""


class LetterAttempt(NamedTuple):
    """One send of a job, as the log of attempts has it. A job is sent again only if its worker was lost."""

    job_id: int
    began_at: datetime
    ended_at: datetime | None
    outcome: str
    code: str | None
    error: str | None
    excerpt: str | None
    """The beginning of what the endpoint answered."""


class LetterJob(NamedTuple):
    """A job of a delivery. Without attempts it was never sent, or the log has forgotten them."""

    id: int
    attempt: int
    status: str
    claims: int
    created_at: datetime
    completed_at: datetime | None
    error: str | None
    attempts: Sequence[LetterAttempt] = ()


class LetterGeneration(NamedTuple):
    """A delivery of the same event to the same subscription."""

    id: int
    generation: int
    status: str
    attempts: int
    error_code: str | None
    created_at: datetime
    updated_at: datetime


class LetterStory(NamedTuple):
    """A dead letter with everything that was tried, and its former and later generations."""

    letter: DeadLetter
    jobs: Sequence[LetterJob]
    generations: Sequence[LetterGeneration]
    """In their order, with the letter's own."""


class LetterCounts(NamedTuple):
    """The letters that an act would concern."""

    by_code: dict[str, int]
    disabled: int
    """The letters of disabled subscriptions among them."""
    last: int
    """The number of the newest: letters that are given up later are left out of the act."""


def list_letters(
    db: Connection, wanted: LetterFilter | None = None, *, before: int | None = None, limit: int = 50
) -> tuple[list[DeadLetter], int | None]:
    """Return a page of letters, newest first, and the `before` of the next page, which is None on the last."""
    values = {**(wanted or LetterFilter()).values(), "before": before, "most": limit + 1}
    found = _rows(db, DeadLetter, LIST, values)
    return found[:limit], found[limit - 1].number if len(found) > limit else None


def count_letters(db: Connection, wanted: LetterFilter) -> LetterCounts:
    """Count letters: the dry run of an act."""
    by_code: dict[str, int] = {}
    disabled = last = 0
    for code, active, count, number in db.execute(_COUNT, wanted.values()).fetchall():
        by_code[code] = by_code.get(code, 0) + count
        disabled += 0 if active else count
        last = max(last, number)
    return LetterCounts(by_code, disabled, last)


def next_letters(db: Connection, wanted: LetterFilter, *, after: int, last: int, most: int) -> list[DeadLetter]:
    """Return letters to act on, oldest first: behind the number `after`, up to `last`."""
    return _rows(db, DeadLetter, _PORTION, {**wanted.values(), "after": after, "last": last, "most": most})


def show_letter(db: Connection, id: int) -> LetterStory | None:
    """Return the story of a dead letter, or None if there is none of this delivery."""
    found, _ = list_letters(db, LetterFilter(ids=(id,), state=None), limit=1)
    if not found:
        return None
    [letter] = found
    return LetterStory(letter, jobs_of(db, id), _rows(db, LetterGeneration, _GENERATIONS, letter._asdict()))


def jobs_of(db: Connection, delivery: int) -> list[LetterJob]:
    """Return the jobs of any delivery with their attempts, in their order."""
    attempts = _rows(db, LetterAttempt, _ATTEMPTS, {"worker": WORKER, "id": delivery})
    return [
        job._replace(attempts=tuple(each for each in attempts if each.job_id == job.id))
        for job in _rows(db, LetterJob, _JOBS, {"id": delivery})
    ]


def requeue(db: Connection, ids: Sequence[int], *, who: str, reason: str) -> dict[int, int]:
    """Requeue dead letters, with an audit. Return the new deliveries by the dead ones.

    Left out are those that were requeued before, whose subscription is disabled, or that are not dead.
    """
    made = [new for (new,) in db.execute(_REQUEUE, (list(ids), who, reason)).fetchall()]
    return dict(db.execute(_NEW, (made,)).fetchall()) if made else {}


def discard(db: Connection, ids: Sequence[int], *, who: str, reason: str) -> list[int]:
    """Put dead letters aside, with an audit. Return those that waited until now."""
    return sorted(each for (each,) in db.execute(_DISCARD, (list(ids), who, reason)).fetchall())


def _rows(db: Connection, kind: type[RowT], statement: str, values: dict[str, Any]) -> list[RowT]:
    with db.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(statement, values).fetchall()
