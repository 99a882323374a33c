-- Events for one HTTP endpoint. Writers record them by runner.enqueue; only the dispatcher changes them.
CREATE SCHEMA runner;

CREATE TABLE runner.event_outbox (
    uuid            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    event_type      text NOT NULL CHECK (length(event_type) BETWEEN 1 AND 255),
    idempotency_key text NOT NULL CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    payload         jsonb NOT NULL,
    status          text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'SENDING', 'DELIVERED', 'FAILED')),
    attempt_count   integer NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    next_attempt_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_at      timestamptz,
    last_error      text,
    delivered_at    timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT event_once UNIQUE (event_type, idempotency_key),
    CONSTRAINT delivered_has_its_time CHECK ((status = 'DELIVERED') = (delivered_at IS NOT NULL))
) WITH (fillfactor = 80);
COMMENT ON TABLE runner.event_outbox IS 'Events for the runner, until they are delivered and after';
COMMENT ON COLUMN runner.event_outbox.uuid IS 'the event_id in the body: the runner recognizes duplicates by it';
COMMENT ON COLUMN runner.event_outbox.attempt_count IS 'how many attempts failed, or were lost with their process';
COMMENT ON COLUMN runner.event_outbox.claimed_at IS 'the lease of the attempt under way, or of the last one';
-- In the order in which events are due: a claim reads none of those that wait for their next attempt.
CREATE INDEX event_outbox_due ON runner.event_outbox (next_attempt_at, created_at, uuid)
    WHERE status IN ('PENDING', 'FAILED');
CREATE INDEX event_outbox_sending ON runner.event_outbox (claimed_at) WHERE status = 'SENDING';

CREATE FUNCTION runner.enqueue(event_type text, idempotency_key text, payload jsonb) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event    uuid;
    recorded jsonb;
BEGIN
    INSERT INTO runner.event_outbox AS e (event_type, idempotency_key, payload)
    VALUES (enqueue.event_type, enqueue.idempotency_key, enqueue.payload)
    ON CONFLICT ON CONSTRAINT event_once DO NOTHING
    RETURNING e.uuid INTO event;
    IF event IS NOT NULL THEN
        RETURN event;
    END IF;
    SELECT e.uuid, e.payload INTO event, recorded FROM runner.event_outbox e
    WHERE e.event_type = enqueue.event_type AND e.idempotency_key = enqueue.idempotency_key;
    IF event IS NULL THEN
        -- It was committed after the snapshot of this transaction, which reads only what was there before.
        RAISE serialization_failure USING MESSAGE = 'the event was recorded in the meantime: repeat the transaction';
    END IF;
    IF recorded IS DISTINCT FROM enqueue.payload THEN
        RAISE EXCEPTION USING ERRCODE = 'RN001', MESSAGE = format(
            'the event %s with the idempotency key %s is recorded with another payload',
            enqueue.event_type, enqueue.idempotency_key);
    END IF;
    RETURN event;
END $$;
COMMENT ON FUNCTION runner.enqueue IS 'Records an event once, in the transaction of the caller, and returns its id';

SELECT ferryman.need_role('CREATE ROLE ferryman_runner_writer NOLOGIN', 'records events for the runner');
SELECT ferryman.need_role('CREATE ROLE ferryman_runner NOLOGIN', 'delivers events to the runner');
GRANT USAGE ON SCHEMA runner TO ferryman_runner_writer, ferryman_runner, ferryman_monitor;
REVOKE EXECUTE ON FUNCTION runner.enqueue FROM PUBLIC;
GRANT EXECUTE ON FUNCTION runner.enqueue TO ferryman_runner_writer;
GRANT SELECT ON runner.event_outbox TO ferryman_runner;
GRANT UPDATE (status, attempt_count, next_attempt_at, claimed_at, last_error, delivered_at, updated_at)
    ON runner.event_outbox TO ferryman_runner;
GRANT SELECT (uuid, event_type, idempotency_key, status, attempt_count, next_attempt_at, claimed_at, last_error,
              delivered_at, created_at, updated_at) ON runner.event_outbox TO ferryman_monitor;
GRANT SELECT ON ferryman.version_runner
    TO ferryman_runner, ferryman_runner_writer, ferryman_courier, ferryman_writer, ferryman_relay, ferryman_consumer,
       ferryman_monitor;

-- Attempts, pauses and acts: whoever operates the dispatcher needs no more than its role.
SELECT ferryman.bind('outbox', 'runner', 'ferryman_runner');
