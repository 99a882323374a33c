"""The orchestrator: results are noted on recipients, and move jobs by how their recipients stand."""

from collections.abc import Sequence
from typing import Any

from ferryman import Received, Saga
from ferryman.services.reviews.job_rules import PORTION, Asked, JobRules, ReviewJob
from ferryman.services.reviews.jobs import Connection
from ferryman.services.reviews.reviews_settings import ReviewsSettings

# Of several results about a recipient a success counts, or else the last one. Told once is told for ever.
NOTE = """\
-- reviews.note
WITH n AS (
    SELECT DISTINCT ON (u.job_id, u.recipient) u.*
    FROM unnest(%(jobs)s::uuid[], %(changelists)s::text[], %(versions)s::integer[], %(recipients)s::text[],
                %(ids)s::text[], %(times)s::timestamptz[], %(codes)s::text[], %(permanents)s::boolean[])
         WITH ORDINALITY u (job_id, changelist_id, review_version, recipient, notification_id, notified_at, error_code,
                            permanent, number)
    JOIN reviews.jobs j ON (j.id, j.changelist_id, j.review_version) = (u.job_id, u.changelist_id, u.review_version)
    ORDER BY u.job_id, u.recipient, u.notified_at IS NULL, u.number DESC
)
UPDATE reviews.recipients r
SET notification_id = n.notification_id, notified_at = n.notified_at, error_code = n.error_code,
    permanent = n.permanent, changed_at = clock_timestamp()
FROM n WHERE (r.job_id, r.recipient) = (n.job_id, n.recipient) AND r.notified_at IS NULL
"""

# The recipients to ask for are read only for jobs that are due.
COMPLETE = """\
-- reviews.complete
SELECT j.id, w.waiting, f.failed,
       CASE WHEN NOT w.waiting AND f.failed = 0 THEN
           (SELECT count(*) FROM reviews.recipients r WHERE r.job_id = j.id AND r.required) ELSE 0 END,
       ARRAY(
           SELECT ARRAY[r.recipient, coalesce(r.subject, q.subject), coalesce(r.body, q.body)]
           FROM reviews.recipients r JOIN reviews.requests q ON q.job_id = j.id
           WHERE r.job_id = j.id AND r.status = 'waiting' AND r.recipient > j.asked_up_to
             AND j.due_at <= statement_timestamp()
           ORDER BY r.recipient LIMIT %(most)s
       )
FROM reviews.jobs j
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM reviews.recipients r WHERE r.job_id = j.id AND r.status = 'waiting')
) w (waiting)
CROSS JOIN LATERAL (
    SELECT count(*) FROM reviews.recipients r WHERE r.job_id = j.id AND r.status = 'failed'
) f (failed)
WHERE j.id = ANY (%(ids)s::uuid[])
"""


def reviews(settings: Any) -> Saga[ReviewJob]:
    """Return the saga of jobs."""
    return rules_of(settings.section(ReviewsSettings)).saga


def rules_of(given: ReviewsSettings) -> JobRules:
    """Return the rules, whose saga knows how the recipients of each job stand."""
    rules = JobRules(given)
    saga = rules.saga

    @saga.note
    def note(db: Connection, results: Sequence[Received]) -> None:
        said = [each.data for each in results]
        columns = {
            "jobs": "job_id", "changelists": "changelist_id", "versions": "review_version", "recipients": "recipient",
            "ids": "notification_id", "times": "notified_at", "codes": "error_code", "permanents": "permanent",
        }  # fmt: skip
        db.execute(NOTE, {plural: [each.get(name) for each in said] for plural, name in columns.items()})

    @saga.complete("waiting", "failed", "recipients", "missing")
    def complete(db: Connection, rows: Sequence[ReviewJob]) -> list[ReviewJob]:
        by_id = {row.id: row for row in rows}
        found = db.execute(COMPLETE, {"ids": list(by_id), "most": PORTION}).fetchall()
        return [
            by_id[job]._replace(
                waiting=waiting, failed=failed, recipients=recipients, missing=[Asked(*each) for each in missing]
            )
            for job, waiting, failed, recipients, missing in found
        ]

    return rules


MACHINE = rules_of(ReviewsSettings()).saga.machine
