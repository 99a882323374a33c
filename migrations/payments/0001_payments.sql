-- Amounts are whole numbers of the currency's smallest unit. A request is recorded first, in one transaction with the
-- message that starts it.
CREATE SCHEMA payments;

CREATE TABLE payments.requests (
    uuid       uuid PRIMARY KEY,
    wallet_id  uuid NOT NULL,
    amount     bigint NOT NULL CHECK (amount > 0),
    currency   text NOT NULL CHECK (length(currency) = 3),
    fulfil     boolean NOT NULL DEFAULT false,
    state      text NOT NULL DEFAULT 'DEDUCTING',
    status     text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN state IN ('SUCCEEDED', 'FAILED') THEN state ELSE 'PENDING' END
    ) STORED,
    reason     text,
    attempt    integer NOT NULL DEFAULT 1 CHECK (attempt > 0),
    due_at     timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 80);
COMMENT ON COLUMN payments.requests.uuid IS 'chosen by the client, which may repeat its request with it';
COMMENT ON COLUMN payments.requests.fulfil IS 'true if the payment must be accepted downstream once the amount is taken';
COMMENT ON COLUMN payments.requests.status IS 'the state as clients see it: PENDING until the payment is over';
COMMENT ON COLUMN payments.requests.due_at IS 'when the payment times out; infinity if it waits for a person';
CREATE INDEX requests_by_age ON payments.requests (created_at);
CREATE INDEX requests_of_wallet ON payments.requests (wallet_id, created_at);

-- The client's own words about a payment: personal data, in a table of its own so that it can be erased.
CREATE TABLE payments.reference (
    uuid      uuid PRIMARY KEY,
    reference text NOT NULL CHECK (length(reference) <= 500)
);

-- the machine payment: begin
ALTER TABLE payments.requests ADD CONSTRAINT payment_states CHECK (state IN ('DEDUCTING', 'CANCELLING', 'FULFILLING', 'RECALLING', 'REFUNDING', 'STUCK', 'SUCCEEDED', 'FAILED'));
ALTER TABLE payments.requests ADD CONSTRAINT payment_waits CHECK ((due_at IS NULL) = (state IN ('SUCCEEDED', 'FAILED')));
CREATE TRIGGER payment_begins BEFORE INSERT ON payments.requests FOR EACH ROW
    WHEN (NEW.state <> 'DEDUCTING')
    EXECUTE FUNCTION ferryman.saga_refuse('payment', 'state');
CREATE TRIGGER payment_ended BEFORE UPDATE ON payments.requests FOR EACH ROW
    WHEN (OLD.state IN ('SUCCEEDED', 'FAILED'))
    EXECUTE FUNCTION ferryman.saga_refuse('payment', 'state');
CREATE TRIGGER payment_goes BEFORE UPDATE ON payments.requests FOR EACH ROW
    WHEN (OLD.uuid <> NEW.uuid OR (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('DEDUCTING', 'CANCELLING'),
        ('DEDUCTING', 'FULFILLING'),
        ('DEDUCTING', 'SUCCEEDED'),
        ('DEDUCTING', 'FAILED'),
        ('CANCELLING', 'STUCK'),
        ('CANCELLING', 'FAILED'),
        ('FULFILLING', 'RECALLING'),
        ('FULFILLING', 'REFUNDING'),
        ('FULFILLING', 'SUCCEEDED'),
        ('RECALLING', 'REFUNDING'),
        ('RECALLING', 'SUCCEEDED'),
        ('REFUNDING', 'STUCK'),
        ('REFUNDING', 'FAILED'),
        ('STUCK', 'FAILED')
    )))
    EXECUTE FUNCTION ferryman.saga_refuse('payment', 'state');
CREATE TRIGGER payment_stays BEFORE DELETE ON payments.requests FOR EACH ROW
    WHEN (OLD.state NOT IN ('SUCCEEDED', 'FAILED') OR
          current_setting('ferryman.archiving', true) IS DISTINCT FROM 'payment')
    EXECUTE FUNCTION ferryman.saga_refuse('payment', 'state');
CREATE TRIGGER payment_all_stay BEFORE TRUNCATE ON payments.requests FOR EACH STATEMENT
    EXECUTE FUNCTION ferryman.saga_refuse('payment', 'state');
CREATE INDEX payment_due ON payments.requests (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX payment_over ON payments.requests (changed_at) WHERE state IN ('SUCCEEDED', 'FAILED');

-- Returns the rows that ended before that time, and deletes them: for archives that keep them elsewhere.
CREATE FUNCTION payments.archive(before timestamptz, who text, reason text, most integer DEFAULT 10000)
    RETURNS SETOF jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('ferryman.archiving', 'payment', true);
    RETURN QUERY WITH gone AS (
        DELETE FROM payments.requests WHERE uuid IN (
            SELECT uuid FROM payments.requests WHERE state IN ('SUCCEEDED', 'FAILED') AND changed_at < before
            ORDER BY changed_at LIMIT most FOR UPDATE SKIP LOCKED
        ) RETURNING *
    ), audit AS (
        INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
        SELECT archive.who, 'archive', archive.reason, jsonb_build_object('machine', 'payment', 'before', before),
               count(*) FROM gone
    )
    SELECT to_jsonb(gone) FROM gone;
    PERFORM set_config('ferryman.archiving', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION payments.archive FROM PUBLIC;
-- the machine payment: end

-- The uuids of archived payments remain: a repeated request is refused, and never charged or given back again. The client's
-- words are deleted with the row.
CREATE TABLE payments.archived (
    uuid        uuid PRIMARY KEY,
    status      text NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE VIEW payments.ended AS
SELECT a.uuid, format('the payment %s is over: it %s, and was archived at %s', a.uuid, a.status,
                      to_char(a.archived_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) AS said
FROM payments.archived a;

CREATE FUNCTION payments.keep_uuid() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO payments.archived (uuid, status) SELECT g.uuid, g.status FROM gone g;
    DELETE FROM payments.reference r USING gone g WHERE r.uuid = g.uuid;
    RETURN NULL;
END $$;
CREATE TRIGGER archived AFTER DELETE ON payments.requests REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION payments.keep_uuid();

-- This runs after the insert, so that an insert that waited for an archive to end sees its result.
CREATE FUNCTION payments.refuse_archived() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE ended text;
BEGIN
    SELECT e.said INTO ended FROM payments.ended e WHERE e.uuid = NEW.uuid;
    IF FOUND THEN
        RAISE unique_violation USING CONSTRAINT = 'requests_archived', TABLE = 'requests', SCHEMA = 'payments',
            MESSAGE = ended;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER never_again AFTER INSERT ON payments.requests
    FOR EACH ROW EXECUTE FUNCTION payments.refuse_archived();

-- The outbox of the literal mode (docs/literal-mode.md): a row for each request, which the relay sends as a described outbox.
-- A row whose attempts are used up stays PENDING until a person decides.
CREATE TABLE payments.outbox (
    uuid            uuid PRIMARY KEY,
    topic           text NOT NULL,
    key             text NOT NULL,
    type            text NOT NULL,
    payload         bytea NOT NULL,
    content_type    text,
    headers         jsonb,
    status          text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PUBLISHED')),
    try_count       integer NOT NULL DEFAULT 0 CHECK (try_count >= 0),
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_attempt_at timestamptz,
    published_at    timestamptz
) WITH (fillfactor = 80);
COMMENT ON COLUMN payments.outbox.uuid IS 'the uuid of the request, and the id of the message: the wallet detects duplicates by it';
COMMENT ON COLUMN payments.outbox.last_attempt_at IS 'when a relay claimed the row: its lease';
CREATE INDEX outbox_pending ON payments.outbox (created_at, uuid) WHERE status = 'PENDING';

-- Least privilege: the API records requests, the orchestrator moves them, and only archive() removes them. The API also needs
-- the role for reports if the wallet reports to it by HTTP.
SELECT ferryman.need_role('CREATE ROLE ferryman_payments NOLOGIN', 'moves payments by results and timeouts');
SELECT ferryman.need_role('CREATE ROLE ferryman_payments_api NOLOGIN', 'records and shows payments');
SELECT ferryman.need_role('CREATE ROLE ferryman_payments_reports NOLOGIN', 'ends payments that are reported by HTTP');
SELECT ferryman.bind('consumer', 'payments', 'ferryman_payments');
SELECT ferryman.bind('consumer', 'payments-fulfilments', 'ferryman_payments');
SELECT ferryman.bind('machine', 'payment', 'ferryman_payments');
SELECT ferryman.grant_like('ferryman_writer', 'ferryman_payments_api');
SELECT ferryman.grant_like('ferryman_writer', 'ferryman_payments_reports');
CREATE POLICY payments ON ferryman.outbox_audit FOR INSERT TO ferryman_payments WITH CHECK (act = 'reconcile');

GRANT USAGE ON SCHEMA payments
    TO ferryman_payments, ferryman_payments_api, ferryman_payments_reports, ferryman_relay, ferryman_monitor;
GRANT SELECT ON payments.requests, payments.archived, payments.ended
    TO ferryman_payments, ferryman_payments_api, ferryman_payments_reports, ferryman_monitor;
GRANT INSERT (uuid, wallet_id, amount, currency, fulfil, due_at) ON payments.requests TO ferryman_payments_api;
GRANT UPDATE (state, attempt, reason, due_at, changed_at)
    ON payments.requests TO ferryman_payments, ferryman_payments_reports;
GRANT SELECT, INSERT, UPDATE (reference), DELETE ON payments.reference TO ferryman_payments_api;
GRANT SELECT ON ferryman.version_payments
    TO ferryman_payments, ferryman_payments_api, ferryman_payments_reports, ferryman_writer, ferryman_relay,
       ferryman_consumer, ferryman_monitor;

-- The outbox of the literal mode: the API inserts, the relay settles, nobody deletes.
GRANT INSERT (uuid, topic, key, type, payload, content_type, headers) ON payments.outbox TO ferryman_payments_api;
GRANT SELECT ON payments.outbox TO ferryman_payments_api, ferryman_relay;
GRANT SELECT (uuid, topic, key, type, content_type, headers, status, try_count, last_error, created_at, last_attempt_at,
              published_at) ON payments.outbox TO ferryman_monitor;
GRANT UPDATE (status, try_count, last_error, last_attempt_at, published_at) ON payments.outbox TO ferryman_relay;
