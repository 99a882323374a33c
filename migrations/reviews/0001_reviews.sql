-- Who is told of which version of a review (docs/reviews.md). A job is created with its recipients, and with a command for
-- each to the notifier, in one transaction.
CREATE SCHEMA reviews;

CREATE TABLE reviews.jobs (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    idempotency_key text NOT NULL CONSTRAINT created_once UNIQUE
                    CONSTRAINT key_is_not_too_long CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    changelist_id   text NOT NULL
                    CONSTRAINT change_is_not_too_long CHECK (length(changelist_id) BETWEEN 1 AND 255),
    review_version  integer NOT NULL CONSTRAINT version_is_positive CHECK (review_version > 0),
    rerun_of        uuid,
    asked_up_to     text NOT NULL DEFAULT '',
    status          text NOT NULL DEFAULT 'in_progress',
    attempt         integer NOT NULL DEFAULT 1,
    reason          text,
    due_at          timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT version_once UNIQUE (changelist_id, review_version)
) WITH (fillfactor = 80);
COMMENT ON COLUMN reviews.jobs.rerun_of IS 'the job of the version before, which may be archived';
COMMENT ON COLUMN reviews.jobs.asked_up_to IS 'the last recipient that was asked for again, while others follow';
COMMENT ON COLUMN reviews.jobs.due_at IS 'when it asks again; infinity if the caller or a person acts';

-- The caller's words, apart from the jobs: only commands need them.
CREATE TABLE reviews.requests (
    job_id  uuid PRIMARY KEY REFERENCES reviews.jobs ON DELETE CASCADE,
    hash    bytea NOT NULL,
    subject text NOT NULL CONSTRAINT subject_is_a_line CHECK (length(subject) BETWEEN 1 AND 998 AND subject !~ '[\r\n]'),
    body    text NOT NULL CONSTRAINT body_is_not_too_long CHECK (length(body) <= 100000)
);
COMMENT ON COLUMN reviews.requests.hash IS 'of all that was asked for: it tells a repeated request from another one';

CREATE TABLE reviews.recipients (
    job_id          uuid NOT NULL REFERENCES reviews.jobs ON DELETE CASCADE,
    recipient       text NOT NULL
                    CONSTRAINT recipient_is_an_address CHECK (recipient ~ '^[^@[:space:][:cntrl:]]+@[^@[:space:][:cntrl:]]+$'
                                                              AND length(recipient) <= 254),
    required        boolean NOT NULL DEFAULT true,
    replaced_by     text,
    subject         text,
    body            text,
    notification_id text,
    notified_at     timestamptz,
    error_code      text,
    permanent       boolean,
    status          text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN NOT required THEN 'withdrawn' WHEN notified_at IS NOT NULL THEN 'notified'
             WHEN error_code IS NOT NULL THEN 'failed' ELSE 'waiting' END
    ) STORED,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_id, recipient)
) WITH (fillfactor = 80);
COMMENT ON COLUMN reviews.recipients.required IS 'false once it was dropped or replaced';
COMMENT ON COLUMN reviews.recipients.subject IS 'a correction of the words for this recipient, as is the body';
CREATE INDEX recipients_waiting ON reviews.recipients (job_id, recipient) WHERE status = 'waiting';
CREATE INDEX recipients_failed ON reviews.recipients (job_id) WHERE status = 'failed';

-- The newest version of each change, for ever: a lower one is refused, and an archived one is not told again.
CREATE TABLE reviews.changelists (
    changelist_id text PRIMARY KEY,
    newest        integer NOT NULL
);

-- the machine review_job: begin
ALTER TABLE reviews.jobs ADD CONSTRAINT review_job_states CHECK (status IN ('in_progress', 'succeeded', 'retryable_failed', 'failed'));
ALTER TABLE reviews.jobs ADD CONSTRAINT review_job_waits CHECK ((due_at IS NULL) = (status IN ('succeeded', 'failed')));
CREATE TRIGGER review_job_begins BEFORE INSERT ON reviews.jobs FOR EACH ROW
    WHEN (NEW.status <> 'in_progress')
    EXECUTE FUNCTION ferryman.saga_refuse('review_job', 'status');
CREATE TRIGGER review_job_ended BEFORE UPDATE ON reviews.jobs FOR EACH ROW
    WHEN (OLD.status IN ('succeeded', 'failed'))
    EXECUTE FUNCTION ferryman.saga_refuse('review_job', 'status');
CREATE TRIGGER review_job_goes BEFORE UPDATE ON reviews.jobs FOR EACH ROW
    WHEN (OLD.id <> NEW.id OR (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('in_progress', 'succeeded'),
        ('in_progress', 'retryable_failed'),
        ('retryable_failed', 'in_progress'),
        ('retryable_failed', 'succeeded'),
        ('retryable_failed', 'failed')
    )))
    EXECUTE FUNCTION ferryman.saga_refuse('review_job', 'status');
CREATE TRIGGER review_job_stays BEFORE DELETE ON reviews.jobs FOR EACH ROW
    WHEN (OLD.status NOT IN ('succeeded', 'failed') OR
          current_setting('ferryman.archiving', true) IS DISTINCT FROM 'review_job')
    EXECUTE FUNCTION ferryman.saga_refuse('review_job', 'status');
CREATE TRIGGER review_job_all_stay BEFORE TRUNCATE ON reviews.jobs FOR EACH STATEMENT
    EXECUTE FUNCTION ferryman.saga_refuse('review_job', 'status');
CREATE INDEX review_job_due ON reviews.jobs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX review_job_over ON reviews.jobs (changed_at) WHERE status IN ('succeeded', 'failed');

-- Returns the rows that ended before that time, and deletes them: for archives that keep them elsewhere.
CREATE FUNCTION reviews.archive(before timestamptz, who text, reason text, most integer DEFAULT 10000)
    RETURNS SETOF jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('ferryman.archiving', 'review_job', true);
    RETURN QUERY WITH gone AS (
        DELETE FROM reviews.jobs WHERE id IN (
            SELECT id FROM reviews.jobs WHERE status IN ('succeeded', 'failed') AND changed_at < before
            ORDER BY changed_at LIMIT most FOR UPDATE SKIP LOCKED
        ) RETURNING *
    ), audit AS (
        INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
        SELECT archive.who, 'archive', archive.reason, jsonb_build_object('machine', 'review_job', 'before', before),
               count(*) FROM gone
    )
    SELECT to_jsonb(gone) FROM gone;
    PERFORM set_config('ferryman.archiving', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION reviews.archive FROM PUBLIC;
-- the machine review_job: end

-- An address with its domain in lower case.
CREATE FUNCTION reviews.folded(recipient text) RETURNS text LANGUAGE sql IMMUTABLE STRICT
BEGIN ATOMIC
    SELECT CASE WHEN strpos(recipient, '@') = 0 THEN recipient
                ELSE split_part(recipient, '@', 1) || lower(substr(recipient, strpos(recipient, '@'))) END;
END;

-- Creates a job with its recipients, once, whoever else creates one at the same moment: the change's row is locked.
-- Returns the job, and true if it is new; a job of this version under another key is returned as it stands. The
-- orchestrator asks for the recipients once `answer_seconds` have passed: at once, unless the caller has done so.
CREATE FUNCTION reviews.create_job(
    idempotency_key text, changelist_id text, review_version integer, recipients text[], subject text, body text,
    rerun boolean DEFAULT false, answer_seconds float8 DEFAULT 0
) RETURNS TABLE (id uuid, is_new boolean) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    everybody CONSTANT text[] := ARRAY(SELECT DISTINCT reviews.folded(r) FROM unnest(recipients) r ORDER BY 1);
    asked     CONSTANT bytea := sha256(convert_to(
        jsonb_build_array(changelist_id, review_version, subject, body, everybody)::text, 'UTF8'));
    newest    integer;
    former    uuid;
    made      uuid;
    said      bytea;
BEGIN
    IF cardinality(everybody) NOT BETWEEN 1 AND 10000 THEN
        RAISE check_violation USING CONSTRAINT = 'recipients_are_not_too_many', MESSAGE = 'there must be 1 to 10000';
    END IF;
    FOR look IN 1..3 LOOP
        SELECT j.id, r.hash INTO made, said FROM reviews.jobs j JOIN reviews.requests r ON r.job_id = j.id
        WHERE j.idempotency_key = idempotency_key;
        IF said = asked THEN
            RETURN QUERY SELECT made, false;
            RETURN;
        ELSIF made IS NOT NULL THEN
            RAISE integrity_constraint_violation USING MESSAGE =
                format('the job %s has this idempotency key, and another body', made);
        ELSIF look = 1 THEN
            INSERT INTO reviews.changelists AS c VALUES (changelist_id, 0)
            ON CONFLICT ON CONSTRAINT changelists_pkey DO UPDATE SET newest = c.newest RETURNING c.newest INTO newest;
        ELSIF look = 2 THEN
            SELECT j.id INTO made FROM reviews.jobs j
            WHERE (j.changelist_id, j.review_version) = (changelist_id, review_version);
            IF FOUND THEN
                RETURN QUERY SELECT made, false;
                RETURN;
            ELSIF newest >= review_version THEN
                RAISE integrity_constraint_violation USING MESSAGE =
                    format('version %s of this change was asked for already: a version is told once', newest);
            ELSIF newest > 0 AND NOT rerun THEN
                RAISE integrity_constraint_violation USING MESSAGE =
                    format('version %s of this change was asked for already: ask for a higher one with rerun', newest);
            END IF;
            SELECT j.id INTO former FROM reviews.jobs j WHERE (j.changelist_id, j.review_version) = (changelist_id, newest);
            INSERT INTO reviews.jobs (idempotency_key, changelist_id, review_version, rerun_of, due_at)
            VALUES (idempotency_key, changelist_id, review_version, former,
                    clock_timestamp() + make_interval(secs => answer_seconds))
            ON CONFLICT ON CONSTRAINT created_once DO NOTHING RETURNING jobs.id INTO made;
            IF FOUND THEN
                INSERT INTO reviews.requests VALUES (made, asked, subject, body);
                INSERT INTO reviews.recipients (job_id, recipient) SELECT made, r FROM unnest(everybody) r;
                UPDATE reviews.changelists c SET newest = review_version WHERE c.changelist_id = changelist_id;
                RETURN QUERY SELECT made, true;
                RETURN;
            END IF;  -- somebody has used the key for another change meanwhile: look what it says
        END IF;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = 'another job was created with this key at the same moment: try again';
END $$;
REVOKE EXECUTE ON FUNCTION reviews.create_job FROM PUBLIC;

-- Least privilege. Nobody creates a job but by the function, or deletes one; writers move none.
SELECT ferryman.need_role('CREATE ROLE ferryman_reviews NOLOGIN', 'moves review jobs, and serves their routes');
SELECT ferryman.need_role('CREATE ROLE ferryman_review_writer NOLOGIN', 'creates review jobs');
SELECT ferryman.bind('consumer', 'reviews', 'ferryman_reviews');
SELECT ferryman.bind('machine', 'review_job', 'ferryman_reviews');
SELECT ferryman.grant_like('ferryman_writer', 'ferryman_review_writer');
GRANT USAGE ON SCHEMA reviews TO ferryman_reviews, ferryman_review_writer, ferryman_monitor;
GRANT EXECUTE ON FUNCTION reviews.create_job TO ferryman_reviews, ferryman_review_writer;
GRANT SELECT ON reviews.jobs, reviews.requests, reviews.recipients TO ferryman_reviews;
GRANT UPDATE (asked_up_to, status, attempt, reason, due_at, changed_at) ON reviews.jobs TO ferryman_reviews;
GRANT INSERT (job_id, recipient, subject, body), UPDATE (required, replaced_by, subject, body, notification_id, notified_at, error_code,
                                          permanent, changed_at) ON reviews.recipients TO ferryman_reviews;
GRANT SELECT ON reviews.jobs, reviews.recipients TO ferryman_review_writer;
-- Monitors read no address and no text; a key may have an address in it.
GRANT SELECT (id, changelist_id, review_version, rerun_of, status, attempt, reason, due_at, created_at, changed_at)
    ON reviews.jobs TO ferryman_monitor;
GRANT SELECT (job_id, required, notification_id, notified_at, error_code, permanent, status, changed_at)
    ON reviews.recipients TO ferryman_monitor;
GRANT SELECT ON ferryman.version_reviews
    TO ferryman_reviews, ferryman_review_writer, ferryman_relay, ferryman_monitor;
