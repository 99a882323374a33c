-- Money is whole numbers of the currency's smallest unit. A request is recorded before anything is done about it, in one
-- transaction with the message that has it done.
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
COMMENT ON COLUMN payments.requests.uuid IS 'the client''s own, by which it may ask again';
COMMENT ON COLUMN payments.requests.fulfil IS 'whether somebody downstream must accept it, once the amount is taken';
COMMENT ON COLUMN payments.requests.status IS 'what clients are told: PENDING until it is over';
COMMENT ON COLUMN payments.requests.due_at IS 'when it is looked at, if nothing has come by then: infinity waits for a person';
CREATE INDEX requests_by_age ON payments.requests (created_at);
CREATE INDEX requests_of_wallet ON payments.requests (wallet_id, created_at);

-- What a client says of its payment: personal, so it stands apart and can be erased.
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
        ('DEDUCTING', 'SUCCEEDED'),
        ('DEDUCTING', 'FAILED'),
        ('DEDUCTING', 'FULFILLING'),
        ('DEDUCTING', 'CANCELLING'),
        ('CANCELLING', 'FAILED'),
        ('CANCELLING', 'STUCK'),
        ('FULFILLING', 'SUCCEEDED'),
        ('FULFILLING', 'REFUNDING'),
        ('FULFILLING', 'RECALLING'),
        ('RECALLING', 'SUCCEEDED'),
        ('RECALLING', 'REFUNDING'),
        ('REFUNDING', 'FAILED'),
        ('REFUNDING', 'STUCK'),
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

-- Gives out the rows that ended before that time, and removes them: for whoever keeps them elsewhere.
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

-- Of what was archived the uuid stays: asked for again, it is refused, and never charged or given back anew. What its
-- client said of it goes with it.
CREATE TABLE payments.archived (
    uuid        uuid PRIMARY KEY,
    status      text NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE FUNCTION payments.keep_uuid() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO payments.archived (uuid, status) SELECT g.uuid, g.status FROM gone g;
    DELETE FROM payments.reference r USING gone g WHERE r.uuid = g.uuid;
    RETURN NULL;
END $$;
CREATE TRIGGER archived AFTER DELETE ON payments.requests REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION payments.keep_uuid();

-- After the row is there: one that waited for an archive to end sees what that left.
CREATE FUNCTION payments.refuse_archived() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE was payments.archived;
BEGIN
    SELECT * INTO was FROM payments.archived a WHERE a.uuid = NEW.uuid;
    IF FOUND THEN
        RAISE unique_violation USING CONSTRAINT = 'requests_archived', TABLE = 'requests', SCHEMA = 'payments',
            MESSAGE = format('the payment %s is over: it %s, and was archived at %s', was.uuid, was.status,
                             to_char(was.archived_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER never_again AFTER INSERT ON payments.requests
    FOR EACH ROW EXECUTE FUNCTION payments.refuse_archived();

-- Least privilege: requests are recorded, and moved by the machine; nobody removes one but by archive().
GRANT USAGE ON SCHEMA payments TO ferryman_writer, ferryman_consumer, ferryman_monitor;
GRANT SELECT ON payments.requests TO ferryman_writer, ferryman_consumer, ferryman_monitor;
GRANT INSERT (uuid, wallet_id, amount, currency, fulfil, due_at) ON payments.requests TO ferryman_writer;
GRANT UPDATE (state, attempt, reason, due_at, changed_at) ON payments.requests TO ferryman_consumer;
GRANT SELECT, INSERT, UPDATE (reference), DELETE ON payments.reference TO ferryman_writer;
GRANT SELECT ON payments.archived TO ferryman_writer, ferryman_consumer, ferryman_monitor;
GRANT SELECT ON ferryman.version_payments TO ferryman_writer, ferryman_relay, ferryman_consumer, ferryman_monitor;
