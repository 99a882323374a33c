-- Who is told of which version of a review: one row each, recorded before anything is sent (docs/reviews.md).
CREATE SCHEMA notifier;

CREATE TABLE notifier.deliveries (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    job_id          uuid NOT NULL,
    changelist_id   text NOT NULL,
    recipient       text NOT NULL,
    review_version  integer NOT NULL CHECK (review_version > 0),
    key             text NOT NULL GENERATED ALWAYS AS (
        review_version::text || '/' || length(changelist_id)::text || '/' || changelist_id || '/' || recipient
    ) STORED,
    payload         jsonb NOT NULL,
    status          text NOT NULL DEFAULT 'queued'
                    CONSTRAINT delivery_status CHECK (status IN ('queued', 'sending', 'sent', 'failed')),
    attempts        integer NOT NULL DEFAULT 0,
    error           text,
    begun_at        timestamptz,
    next_attempt_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    notification_id text,
    notified_at     timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT notified_once UNIQUE (changelist_id, recipient, review_version),
    -- What is marked is never claimed, and nothing is sent without its mark.
    CONSTRAINT sent_is_marked CHECK ((status = 'sent') = (notified_at IS NOT NULL))
) WITH (fillfactor = 80);
COMMENT ON TABLE notifier.deliveries IS 'The e-mails that tell people of a review, each once for a version of it';
COMMENT ON COLUMN notifier.deliveries.key IS 'what the token that the provider is given is derived from';
COMMENT ON COLUMN notifier.deliveries.payload IS 'subject and body';
COMMENT ON COLUMN notifier.deliveries.begun_at IS 'the lease of the attempt under way, or of the last one';
COMMENT ON COLUMN notifier.deliveries.notification_id IS 'what the provider calls the mail';
CREATE INDEX deliveries_queued ON notifier.deliveries (next_attempt_at, created_at, id) WHERE status = 'queued';
CREATE INDEX deliveries_sending ON notifier.deliveries (begun_at) WHERE status = 'sending';
CREATE INDEX deliveries_failed ON notifier.deliveries (created_at) WHERE status = 'failed';
CREATE INDEX deliveries_of_job ON notifier.deliveries (job_id);

-- Least privilege: it changes nobody's recipient and version, and deletes nothing.
SELECT ferryman.need_role('CREATE ROLE ferryman_notifier NOLOGIN', 'tells people of reviews, and reports whom it told');
SELECT ferryman.bind('consumer', 'notifier', 'ferryman_notifier');
SELECT ferryman.bind('outbox', 'notifier', 'ferryman_notifier');
GRANT USAGE ON SCHEMA notifier TO ferryman_notifier, ferryman_monitor;
GRANT SELECT, INSERT (job_id, changelist_id, recipient, review_version, payload),
    UPDATE (job_id, payload, status, attempts, error, begun_at, next_attempt_at, notification_id, notified_at)
    ON notifier.deliveries TO ferryman_notifier;
-- Monitors read no address and no text.
GRANT SELECT (id, job_id, changelist_id, review_version, status, attempts, error, begun_at, next_attempt_at,
              notification_id, notified_at, created_at) ON notifier.deliveries TO ferryman_monitor;
GRANT SELECT ON ferryman.version_notifier TO ferryman_notifier, ferryman_relay, ferryman_monitor;
