-- Events are delivered to subscriptions. A delivery is a saga (docs/webhooks.md); each attempt of it is a job.
CREATE SCHEMA webhooks;

-- A payload is bytes that only the worker reads.
CREATE TABLE webhooks.events (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type         text NOT NULL CHECK (length(type) BETWEEN 1 AND 255),
    payload      bytea NOT NULL
                 CONSTRAINT payload_is_not_too_large CHECK (octet_length(payload) <= 1048576),
    content_type text NOT NULL DEFAULT 'application/json' CHECK (length(content_type) BETWEEN 1 AND 255),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    only_for     bigint,
    idempotency_key text CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    request_hash bytea,
    CONSTRAINT key_has_its_hash CHECK ((idempotency_key IS NULL) = (request_hash IS NULL))
);
COMMENT ON TABLE webhooks.events IS 'What happened: each is delivered to every active subscription that wants its type';
COMMENT ON COLUMN webhooks.events.only_for IS 'the subscription that a test is for; null: every one that wants the type';
COMMENT ON COLUMN webhooks.events.request_hash IS 'a hash of what was asked for with this key: another request is refused';
CREATE UNIQUE INDEX events_by_key ON webhooks.events (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE webhooks.subscriptions (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint        text NOT NULL
                    CONSTRAINT endpoint_is_a_url CHECK (endpoint ~ '^https?://[^/?#@[:space:]]+([/?][^#[:space:]]*)?$'
                                                        AND length(endpoint) <= 2000),
    event_types     text[] NOT NULL CHECK (cardinality(event_types) BETWEEN 1 AND 100
                                           AND array_position(event_types, NULL) IS NULL),
    active          boolean NOT NULL DEFAULT true,
    paused          boolean NOT NULL DEFAULT false,
    max_retry_limit integer CHECK (max_retry_limit BETWEEN 1 AND 100),
    base_seconds    double precision CHECK (base_seconds > 0 AND base_seconds <= 86400),
    cap_seconds     double precision CHECK (cap_seconds > 0 AND cap_seconds <= 604800),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    idempotency_key text CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    request_hash    bytea,
    CONSTRAINT key_has_its_hash CHECK ((idempotency_key IS NULL) = (request_hash IS NULL)),
    enabled_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    failing_since   timestamptz,
    disabled_at     timestamptz,
    disabled_reason text CHECK (length(disabled_reason) <= 100),
    CONSTRAINT disabled_has_its_time CHECK (active = (disabled_at IS NULL) AND (disabled_reason IS NULL OR NOT active))
);
COMMENT ON COLUMN webhooks.subscriptions.active IS 'false: no more events, and no more attempts of those under way';
COMMENT ON COLUMN webhooks.subscriptions.paused IS 'true: its jobs wait';
COMMENT ON COLUMN webhooks.subscriptions.max_retry_limit IS 'null: webhooks.max_retry_limit; the same goes for the waits';
COMMENT ON COLUMN webhooks.subscriptions.enabled_at IS 'attempts that began before do not count against the endpoint';
COMMENT ON COLUMN webhooks.subscriptions.failing_since IS 'the first failure since the last success';
COMMENT ON COLUMN webhooks.subscriptions.disabled_reason IS 'GONE or FAILING: by ferryman run webhook-endpoints; else by a person';
CREATE INDEX subscriptions_by_type ON webhooks.subscriptions USING gin (event_types) WHERE active;
CREATE UNIQUE INDEX subscriptions_by_key ON webhooks.subscriptions (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX subscriptions_paused ON webhooks.subscriptions (id) WHERE paused AND active;

-- A subscription that is enabled again, or gets another endpoint, begins anew.
CREATE FUNCTION webhooks.note_activity() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.active THEN
        NEW.enabled_at := clock_timestamp();
        NEW.failing_since := NULL;
        NEW.disabled_at := NULL;
        NEW.disabled_reason := NULL;
    ELSE
        NEW.disabled_at := clock_timestamp();
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER added BEFORE INSERT ON webhooks.subscriptions FOR EACH ROW EXECUTE FUNCTION webhooks.note_activity();
CREATE TRIGGER changed BEFORE UPDATE OF active, endpoint ON webhooks.subscriptions FOR EACH ROW
    WHEN (OLD.active <> NEW.active OR (NEW.active AND OLD.endpoint <> NEW.endpoint))
    EXECUTE FUNCTION webhooks.note_activity();

-- Apart from the subscriptions: the orchestrator never reads a secret. Each signs, so two do while one replaces the other.
CREATE TABLE webhooks.subscription_secrets (
    subscription_id bigint NOT NULL REFERENCES webhooks.subscriptions,
    secret          text NOT NULL CHECK (length(secret) BETWEEN 16 AND 255),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at      timestamptz NOT NULL DEFAULT 'infinity',
    PRIMARY KEY (subscription_id, secret)
);

CREATE TYPE webhooks.delivery_status AS ENUM ('Pending', 'InProgress', 'PendingRetry', 'Completed', 'DeadLettered');

CREATE TABLE webhooks.webhook_delivery_sagas (
    id               bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    event_id         bigint NOT NULL,
    subscription_id  bigint NOT NULL REFERENCES webhooks.subscriptions,
    status           webhooks.delivery_status NOT NULL DEFAULT 'Pending',
    attempt_count    integer NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    next_attempt_at  timestamptz,
    final_error_code varchar(100),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation       integer NOT NULL DEFAULT 0 CHECK (generation >= 0),
    requeued_from    bigint,
    CONSTRAINT uniq_saga_event_subscription UNIQUE (event_id, subscription_id, generation),
    CONSTRAINT requeued_has_its_origin CHECK ((generation > 0) = (requeued_from IS NOT NULL))
) WITH (fillfactor = 80);
COMMENT ON COLUMN webhooks.webhook_delivery_sagas.attempt_count IS 'attempts whose results were applied';
COMMENT ON COLUMN webhooks.webhook_delivery_sagas.next_attempt_at IS 'when the saga is looked at again; null once it is over';
COMMENT ON COLUMN webhooks.webhook_delivery_sagas.generation IS 'how often the delivery was requeued from the dead letters';
CREATE INDEX idx_saga_event ON webhooks.webhook_delivery_sagas (event_id, subscription_id);
CREATE INDEX idx_saga_status ON webhooks.webhook_delivery_sagas (status);
CREATE INDEX idx_saga_status_retry ON webhooks.webhook_delivery_sagas (status, next_attempt_at);
CREATE INDEX deliveries_by_subscription ON webhooks.webhook_delivery_sagas (subscription_id, id);

-- the machine webhook_delivery: begin
ALTER TABLE webhooks.webhook_delivery_sagas ADD CONSTRAINT webhook_delivery_states CHECK (status IN ('Pending', 'InProgress', 'PendingRetry', 'Completed', 'DeadLettered'));
ALTER TABLE webhooks.webhook_delivery_sagas ADD CONSTRAINT webhook_delivery_waits CHECK ((next_attempt_at IS NULL) = (status IN ('Completed', 'DeadLettered')));
CREATE TRIGGER webhook_delivery_begins BEFORE INSERT ON webhooks.webhook_delivery_sagas FOR EACH ROW
    WHEN (NEW.status <> 'Pending')
    EXECUTE FUNCTION ferryman.saga_refuse('webhook_delivery', 'status');
CREATE TRIGGER webhook_delivery_ended BEFORE UPDATE ON webhooks.webhook_delivery_sagas FOR EACH ROW
    WHEN (OLD.status IN ('Completed', 'DeadLettered'))
    EXECUTE FUNCTION ferryman.saga_refuse('webhook_delivery', 'status');
CREATE TRIGGER webhook_delivery_goes BEFORE UPDATE ON webhooks.webhook_delivery_sagas FOR EACH ROW
    WHEN (OLD.id <> NEW.id OR (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('Pending', 'InProgress'),
        ('InProgress', 'PendingRetry'),
        ('InProgress', 'Completed'),
        ('PendingRetry', 'InProgress'),
        ('PendingRetry', 'DeadLettered')
    )))
    EXECUTE FUNCTION ferryman.saga_refuse('webhook_delivery', 'status');
CREATE TRIGGER webhook_delivery_stays BEFORE DELETE ON webhooks.webhook_delivery_sagas FOR EACH ROW
    WHEN (OLD.status NOT IN ('Completed', 'DeadLettered') OR
          current_setting('ferryman.archiving', true) IS DISTINCT FROM 'webhook_delivery')
    EXECUTE FUNCTION ferryman.saga_refuse('webhook_delivery', 'status');
CREATE TRIGGER webhook_delivery_all_stay BEFORE TRUNCATE ON webhooks.webhook_delivery_sagas FOR EACH STATEMENT
    EXECUTE FUNCTION ferryman.saga_refuse('webhook_delivery', 'status');
CREATE INDEX webhook_delivery_over ON webhooks.webhook_delivery_sagas (updated_at) WHERE status IN ('Completed', 'DeadLettered');

-- Returns the rows that ended before that time, and deletes them: for archives that keep them elsewhere.
CREATE FUNCTION webhooks.archive(before timestamptz, who text, reason text, most integer DEFAULT 10000)
    RETURNS SETOF jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('ferryman.archiving', 'webhook_delivery', true);
    RETURN QUERY WITH gone AS (
        DELETE FROM webhooks.webhook_delivery_sagas WHERE id IN (
            SELECT id FROM webhooks.webhook_delivery_sagas WHERE status IN ('Completed', 'DeadLettered') AND updated_at < before
            ORDER BY updated_at LIMIT most FOR UPDATE SKIP LOCKED
        ) RETURNING *
    ), audit AS (
        INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
        SELECT archive.who, 'archive', archive.reason, jsonb_build_object('machine', 'webhook_delivery', 'before', before),
               count(*) FROM gone
    )
    SELECT to_jsonb(gone) FROM gone;
    PERFORM set_config('ferryman.archiving', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION webhooks.archive FROM PUBLIC;
-- the machine webhook_delivery: end

-- One attempt of a delivery. The orchestrator inserts it; the worker claims it, and ends it once.
CREATE TABLE webhooks.webhook_delivery_jobs (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    saga_id         bigint NOT NULL,
    event_id        bigint NOT NULL,
    subscription_id bigint NOT NULL,
    attempt         integer NOT NULL CHECK (attempt > 0),
    status          text NOT NULL DEFAULT 'Pending' CHECK (status IN ('Pending', 'Leased', 'Completed', 'Failed')),
    claims          integer NOT NULL DEFAULT 0,
    leased_at       timestamptz,
    error           text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at    timestamptz,
    -- What its result says of it: the worker needs no other table for that.
    facts           text NOT NULL GENERATED ALWAYS AS (
        '{"saga_id": ' || saga_id::text || ', "event_id": ' || event_id::text || ', "subscription_id": '
        || subscription_id::text || ', "attempt": ' || attempt::text || '}'
    ) STORED,
    CONSTRAINT job_once UNIQUE (saga_id, attempt)
) WITH (fillfactor = 80);
COMMENT ON COLUMN webhooks.webhook_delivery_jobs.claims IS 'how often a worker claimed it: more than once if one was lost';
-- By CASE, which the planner does not see through: a claim of pending jobs must not take this index for its own.
CREATE UNIQUE INDEX one_active_job ON webhooks.webhook_delivery_jobs (saga_id)
    WHERE CASE status WHEN 'Pending' THEN true WHEN 'Leased' THEN true ELSE false END;
CREATE INDEX jobs_pending ON webhooks.webhook_delivery_jobs (subscription_id, created_at, id) WHERE status = 'Pending';
CREATE INDEX jobs_succeeded ON webhooks.webhook_delivery_jobs (subscription_id, completed_at) WHERE status = 'Completed';
CREATE INDEX jobs_leased ON webhooks.webhook_delivery_jobs (leased_at) WHERE status = 'Leased';
CREATE TRIGGER webhook_job_ended BEFORE UPDATE ON webhooks.webhook_delivery_jobs FOR EACH ROW
    WHEN (OLD.status IN ('Completed', 'Failed'))
    EXECUTE FUNCTION ferryman.saga_refuse('webhook_job', 'status');
CREATE TRIGGER webhook_job_stays BEFORE DELETE ON webhooks.webhook_delivery_jobs FOR EACH ROW
    WHEN (current_setting('ferryman.archiving', true) IS DISTINCT FROM 'webhook_delivery')
    EXECUTE FUNCTION ferryman.saga_refuse('webhook_job', 'status');

CREATE TABLE webhooks.dead_letters (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    saga_id         bigint NOT NULL UNIQUE,
    event_id        bigint NOT NULL,
    subscription_id bigint NOT NULL,
    attempts        integer NOT NULL,
    error_code      varchar(100) NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    requeued_as     bigint,
    discarded_at    timestamptz,
    who             text,
    reason          text,
    CONSTRAINT discarded_by_somebody CHECK (num_nulls(discarded_at, who, reason) IN (0, 3))
);
COMMENT ON TABLE webhooks.dead_letters IS 'Deliveries that were given up';
COMMENT ON COLUMN webhooks.dead_letters.requeued_as IS 'the delivery of the next generation';
COMMENT ON COLUMN webhooks.dead_letters.discarded_at IS 'when somebody (who) put it aside, for a reason; it can still be requeued';
CREATE INDEX dead_letters_waiting ON webhooks.dead_letters (id) WHERE requeued_as IS NULL AND discarded_at IS NULL;
CREATE INDEX dead_letters_by_subscription ON webhooks.dead_letters (subscription_id, id);
CREATE TRIGGER signed BEFORE UPDATE OF who ON webhooks.dead_letters FOR EACH ROW EXECUTE FUNCTION ferryman.sign();

-- The events that are not routed yet: the orchestrator may write no event.
CREATE TABLE webhooks.unrouted (
    event_id bigint PRIMARY KEY
);

-- The newest event whose deliveries were archived: older ones are not routed again.
CREATE TABLE webhooks.archived (
    event_id bigint NOT NULL
);

CREATE FUNCTION webhooks.queue_event() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO webhooks.unrouted VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER queued AFTER INSERT ON webhooks.events FOR EACH ROW EXECUTE FUNCTION webhooks.queue_event();

-- Records an event for one subscription alone, so that its endpoint is tried by what sends the others. Returns the event's id,
-- or null if there is no such subscription, or it is not active.
CREATE FUNCTION webhooks.send_test(subscription bigint) RETURNS bigint LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO webhooks.events (type, payload, only_for)
    SELECT 'webhook.test', convert_to(format('{"test": true, "subscription_id": %s}', s.id), 'UTF8'), s.id
    FROM webhooks.subscriptions s WHERE s.id = subscription AND s.active
    RETURNING id
$$;
REVOKE EXECUTE ON FUNCTION webhooks.send_test FROM PUBLIC;

CREATE FUNCTION webhooks.refuse_archived() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM webhooks.archived a WHERE a.event_id >= NEW.event_id) THEN
        RAISE integrity_constraint_violation USING MESSAGE = format(
            'the event %s is not routed again: deliveries of it or of later events are archived', NEW.event_id);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER not_archived BEFORE INSERT ON webhooks.unrouted
    FOR EACH ROW EXECUTE FUNCTION webhooks.refuse_archived();

-- What belongs to a delivery leaves with it.
CREATE FUNCTION webhooks.keep_mark() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM webhooks.webhook_delivery_jobs j USING gone g WHERE j.saga_id = g.id;
    DELETE FROM webhooks.dead_letters d USING gone g WHERE d.saga_id = g.id;
    WITH known AS (DELETE FROM webhooks.archived RETURNING event_id)
    INSERT INTO webhooks.archived
    SELECT max(event_id) FROM (SELECT event_id FROM known UNION ALL SELECT event_id FROM gone) e HAVING count(*) > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER archived AFTER DELETE ON webhooks.webhook_delivery_sagas REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION webhooks.keep_mark();

-- A foreign key to the event, at a third of its cost: an event is routed to 100,000 subscriptions in one statement.
CREATE FUNCTION webhooks.check_events() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM (SELECT DISTINCT event_id FROM made) m
               WHERE NOT EXISTS (SELECT FROM webhooks.events e WHERE e.id = m.event_id)) THEN
        RAISE foreign_key_violation USING MESSAGE = 'a delivery is of an event that does not exist';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER of_an_event AFTER INSERT ON webhooks.webhook_delivery_sagas REFERENCING NEW TABLE AS made
    FOR EACH STATEMENT EXECUTE FUNCTION webhooks.check_events();
CREATE FUNCTION webhooks.keep_event() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM webhooks.webhook_delivery_sagas s WHERE s.event_id = OLD.id) THEN
        RAISE foreign_key_violation USING MESSAGE = format('the event %s has deliveries: archive them first', OLD.id);
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER has_deliveries BEFORE DELETE ON webhooks.events FOR EACH ROW EXECUTE FUNCTION webhooks.keep_event();

-- A delivery that is not the first one is new, and stands behind a dead one: the dead one is never touched.
CREATE FUNCTION webhooks.check_requeued() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM webhooks.webhook_delivery_sagas s
        WHERE s.id = NEW.requeued_from AND s.status = 'DeadLettered' AND s.generation = NEW.generation - 1
          AND (s.event_id, s.subscription_id) = (NEW.event_id, NEW.subscription_id)
    ) THEN
        RAISE integrity_constraint_violation USING MESSAGE =
            'only a dead delivery is requeued: by one of the same event and subscription, of the next generation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER requeued BEFORE INSERT ON webhooks.webhook_delivery_sagas FOR EACH ROW
    WHEN (NEW.generation > 0)
    EXECUTE FUNCTION webhooks.check_requeued();

-- Requeues those of these deliveries that are dead and were not requeued, each as a new one. Returns the new ids. To a disabled
-- subscription nothing is requeued: it would be dead again at once.
CREATE FUNCTION webhooks.requeue(dead bigint[], who text, reason text) RETURNS SETOF bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY WITH chosen AS (
        SELECT d.saga_id FROM webhooks.dead_letters d JOIN webhooks.subscriptions p ON p.id = d.subscription_id
        WHERE d.saga_id = ANY (dead) AND d.requeued_as IS NULL AND p.active
        ORDER BY d.id FOR UPDATE OF d
    ), requeued AS (
        INSERT INTO webhooks.webhook_delivery_sagas
            (event_id, subscription_id, next_attempt_at, generation, requeued_from)
        SELECT s.event_id, s.subscription_id, clock_timestamp(), s.generation + 1, s.id
        FROM chosen c JOIN webhooks.webhook_delivery_sagas s ON s.id = c.saga_id
        ORDER BY s.id
        ON CONFLICT ON CONSTRAINT uniq_saga_event_subscription DO NOTHING
        RETURNING id, requeued_from
    ), linked AS (
        UPDATE webhooks.dead_letters d SET requeued_as = r.id FROM requeued r WHERE d.saga_id = r.requeued_from
    ), audit AS (
        INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
        SELECT requeue.who, 'requeue', requeue.reason,
               jsonb_build_object('machine', 'webhook_delivery', 'dead', array_agg(r.requeued_from)), count(*)
        FROM requeued r HAVING count(*) > 0
    )
    SELECT r.id FROM requeued r;
END $$;
REVOKE EXECUTE ON FUNCTION webhooks.requeue FROM PUBLIC;

-- Puts those of these dead deliveries aside that nobody has decided about. Returns their ids.
CREATE FUNCTION webhooks.discard(dead bigint[], who text, reason text) RETURNS SETOF bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY WITH chosen AS (
        SELECT d.id FROM webhooks.dead_letters d
        WHERE d.saga_id = ANY (dead) AND d.requeued_as IS NULL AND d.discarded_at IS NULL
        ORDER BY d.id FOR UPDATE
    ), discarded AS (
        UPDATE webhooks.dead_letters d SET discarded_at = clock_timestamp(), who = discard.who, reason = discard.reason
        FROM chosen c WHERE d.id = c.id
        RETURNING d.saga_id
    ), audit AS (
        INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
        SELECT discard.who, 'discard', discard.reason,
               jsonb_build_object('machine', 'webhook_delivery', 'dead', array_agg(d.saga_id)), count(*)
        FROM discarded d HAVING count(*) > 0
    )
    SELECT d.saga_id FROM discarded d;
END $$;
REVOKE EXECUTE ON FUNCTION webhooks.discard FROM PUBLIC;

-- Least privilege. Nobody changes an event, nobody deletes a delivery, and only the orchestrator moves one.
SELECT ferryman.need_role('CREATE ROLE ferryman_saga_orchestrator NOLOGIN', 'routes events and moves deliveries');
SELECT ferryman.need_role('CREATE ROLE ferryman_webhook_worker NOLOGIN', 'sends webhooks, and reports what became of them');
SELECT ferryman.need_role('CREATE ROLE ferryman_dead_letter_operator NOLOGIN', 'requeues and discards dead deliveries');
SELECT ferryman.need_role('CREATE ROLE ferryman_subscription_manager NOLOGIN', 'keeps subscriptions and their secrets, and disables endpoints that are gone');
SELECT ferryman.need_role('CREATE ROLE ferryman_event_writer NOLOGIN', 'records events for webhooks');
SELECT ferryman.bind('consumer', 'webhooks', 'ferryman_saga_orchestrator');
SELECT ferryman.bind('consumer', 'webhook-endpoints', 'ferryman_subscription_manager');
SELECT ferryman.bind('consumer', 'webhook-events', 'ferryman_event_writer');
SELECT ferryman.bind('machine', 'webhook_delivery', 'ferryman_saga_orchestrator');
SELECT ferryman.bind('outbox', 'webhook-worker', 'ferryman_webhook_worker');
SELECT ferryman.grant_like('ferryman_writer', 'ferryman_webhook_worker');
GRANT USAGE ON SCHEMA webhooks
    TO ferryman_saga_orchestrator, ferryman_webhook_worker, ferryman_dead_letter_operator, ferryman_subscription_manager,
       ferryman_event_writer, ferryman_monitor;
GRANT SELECT ON ferryman.version_webhooks
    TO ferryman_saga_orchestrator, ferryman_webhook_worker, ferryman_dead_letter_operator, ferryman_subscription_manager,
       ferryman_event_writer, ferryman_relay, ferryman_monitor;

-- It reads events without their payloads, and takes no job back.
GRANT SELECT (id, type, created_at, only_for) ON webhooks.events TO ferryman_saga_orchestrator;
GRANT SELECT (id, type, created_at) ON webhooks.events TO ferryman_dead_letter_operator;
GRANT SELECT ON webhooks.subscriptions, webhooks.webhook_delivery_sagas, webhooks.webhook_delivery_jobs,
    webhooks.dead_letters, webhooks.unrouted TO ferryman_saga_orchestrator;
GRANT UPDATE, DELETE ON webhooks.unrouted TO ferryman_saga_orchestrator;
GRANT INSERT (event_id, subscription_id, next_attempt_at) ON webhooks.webhook_delivery_sagas TO ferryman_saga_orchestrator;
GRANT UPDATE (status, attempt_count, final_error_code, next_attempt_at, updated_at)
    ON webhooks.webhook_delivery_sagas TO ferryman_saga_orchestrator;
GRANT INSERT (saga_id, event_id, subscription_id, attempt, status, error)
    ON webhooks.webhook_delivery_jobs TO ferryman_saga_orchestrator;
GRANT INSERT (saga_id, event_id, subscription_id, attempts, error_code)
    ON webhooks.dead_letters TO ferryman_saga_orchestrator;
-- Where a result was lost, the orchestrator asks for the code of the last attempt. Operators see every attempt.
GRANT SELECT (outbox, row_id, began_at, code) ON ferryman.outbox_attempt TO ferryman_saga_orchestrator;
GRANT SELECT ON ferryman.outbox_attempt, ferryman.bound_name TO ferryman_dead_letter_operator;
CREATE POLICY webhooks ON ferryman.outbox_attempt FOR SELECT TO ferryman_saga_orchestrator, ferryman_dead_letter_operator
    USING (outbox = 'webhook-worker');

GRANT SELECT ON webhooks.events, webhooks.subscriptions, webhooks.subscription_secrets, webhooks.webhook_delivery_jobs
    TO ferryman_webhook_worker;
GRANT UPDATE (status, claims, leased_at, error, completed_at)
    ON webhooks.webhook_delivery_jobs TO ferryman_webhook_worker;

GRANT SELECT ON webhooks.subscriptions, webhooks.webhook_delivery_sagas, webhooks.webhook_delivery_jobs,
    webhooks.dead_letters TO ferryman_dead_letter_operator;
GRANT EXECUTE ON FUNCTION webhooks.requeue, webhooks.discard TO ferryman_dead_letter_operator;

GRANT SELECT,
    INSERT (endpoint, event_types, active, paused, max_retry_limit, base_seconds, cap_seconds, idempotency_key, request_hash),
    UPDATE (endpoint, event_types, active, paused, max_retry_limit, base_seconds, cap_seconds, updated_at, failing_since,
            disabled_reason)
    ON webhooks.subscriptions TO ferryman_subscription_manager;
GRANT SELECT (id, subscription_id, status, leased_at, completed_at) ON webhooks.webhook_delivery_jobs
    TO ferryman_subscription_manager;
GRANT SELECT, INSERT, UPDATE (expires_at), DELETE ON webhooks.subscription_secrets TO ferryman_subscription_manager;
-- The policies of the log of attempts ask which names are bound.
GRANT SELECT ON ferryman.bound_name TO ferryman_dead_letter_operator;
GRANT EXECUTE ON FUNCTION webhooks.send_test TO ferryman_subscription_manager;

GRANT INSERT (type, payload, content_type, idempotency_key, request_hash),
    SELECT (id, type, content_type, created_at, idempotency_key, request_hash) ON webhooks.events TO ferryman_event_writer;

-- Monitors read no payload, no secret, and no endpoint: its URL may hold one.
GRANT SELECT (id, type, content_type, created_at, only_for) ON webhooks.events TO ferryman_monitor;
GRANT SELECT (id, event_types, active, paused, max_retry_limit, base_seconds, cap_seconds, created_at, updated_at, enabled_at,
              failing_since, disabled_at, disabled_reason)
    ON webhooks.subscriptions TO ferryman_monitor;
GRANT SELECT ON webhooks.webhook_delivery_sagas, webhooks.webhook_delivery_jobs, webhooks.dead_letters, webhooks.unrouted
    TO ferryman_monitor;
