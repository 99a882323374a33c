-- A receipt for each message that a consumer has a verdict on, written in the transaction of the message's effects.
--
--   HANDLED    the effects and the results are committed
--   RECEIVED   at_most_once: committed before the message is handled; if it stays RECEIVED, it had no effect
--   REJECTED   the message could not be handled; inbox_rejected has its record
--   REOPENED   the message was rejected, and a person requeued it
CREATE TABLE ferryman.inbox (
    consumer    text NOT NULL,
    id          uuid NOT NULL,
    status      text NOT NULL,
    outcome     text,
    reason      text,
    hash        bytea NOT NULL,
    type        text NOT NULL,
    topic       text NOT NULL,
    partition   integer NOT NULL,
    "offset"    bigint NOT NULL,
    results     text,
    error       text,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, id)
);
COMMENT ON TABLE ferryman.inbox IS 'the verdict on each message, by consumer and id: a message with a receipt has no effect again';
COMMENT ON COLUMN ferryman.inbox.results IS 'the reports of the message, to be reported again with the same ids and bytes';
CREATE INDEX inbox_by_age ON ferryman.inbox (consumer, received_at);
CREATE INDEX inbox_unusual ON ferryman.inbox (consumer, status, received_at) WHERE status <> 'HANDLED';

-- Returns the receipts of these messages. It is planned anew at each call: a plan made while the table was small would be
-- kept, and read the whole table once it is large. Each id is looked up by itself (OFFSET 0) for the same reason: before
-- the table is analyzed, the planner expects few rows per consumer.
CREATE FUNCTION ferryman.inbox_known(consumer text, ids uuid[])
    RETURNS TABLE (id uuid, status text, hash bytea, results text) LANGUAGE plpgsql STABLE
    SET plan_cache_mode = force_custom_plan SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT k.id, k.status, k.hash, k.results
    FROM unnest(ids) n (id) CROSS JOIN LATERAL (
        SELECT i.id, i.status, i.hash, i.results FROM ferryman.inbox i
        WHERE i.consumer = inbox_known.consumer AND i.id = n.id OFFSET 0
    ) k;
END $$;

-- A batch that is being handled has its transaction id here, and deletes it with its verdicts. The trigger refuses a
-- COMMIT before that, so no handler can keep half of a batch.
CREATE TABLE ferryman.inbox_open (
    xid      xid8 PRIMARY KEY,
    asked_at timestamptz
);

-- It fires at a COMMIT, and at SET CONSTRAINTS ALL IMMEDIATE, which a handler may say. So it does not refuse at once: it
-- has itself called again. A COMMIT does that in the same statement.
CREATE FUNCTION ferryman.inbox_still_open() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM ferryman.inbox_open o WHERE o.xid = NEW.xid) THEN
        RETURN NULL;
    END IF;
    IF NEW.asked_at = statement_timestamp() THEN
        RAISE integrity_constraint_violation
            USING MESSAGE = 'only the runtime commits', CONSTRAINT = 'only_the_runtime_commits';
    END IF;
    SET CONSTRAINTS ferryman.only_the_runtime_commits DEFERRED;
    UPDATE ferryman.inbox_open SET asked_at = statement_timestamp() WHERE xid = NEW.xid;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER only_the_runtime_commits AFTER INSERT OR UPDATE ON ferryman.inbox_open
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ferryman.inbox_still_open();

-- The rejected records as Kafka had them. A place may have several, because the offsets of a topic that is made anew, and of
-- another cluster, begin at 0 again. A record is rejected anew only if its place, its message's id, and its bytes are the same.
CREATE TABLE ferryman.inbox_rejected (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer    text NOT NULL,
    topic       text NOT NULL,
    partition   integer NOT NULL,
    "offset"    bigint NOT NULL,
    id          uuid NOT NULL,
    hash        bytea NOT NULL,
    type        text NOT NULL,
    key         bytea,
    value       bytea,
    value_bytes integer GENERATED ALWAYS AS (octet_length(value)) STORED,
    headers     jsonb NOT NULL,
    code        text NOT NULL,
    error       text NOT NULL,
    status      text NOT NULL DEFAULT 'REJECTED' CHECK (status IN ('REJECTED', 'REQUEUED', 'DISCARDED')),
    rejected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at  timestamptz,
    who         text,
    reason      text,
    UNIQUE (consumer, topic, partition, "offset", id, hash)
);
CREATE INDEX inbox_rejected_by_id ON ferryman.inbox_rejected (consumer, id);
CREATE INDEX inbox_rejected_waiting ON ferryman.inbox_rejected (consumer, rejected_at) WHERE status = 'REJECTED';
CREATE INDEX inbox_rejected_settled ON ferryman.inbox_rejected (consumer, rejected_at) WHERE status <> 'REJECTED';

-- Whether the last owner of each partition released it. If not, the next owner marks its batches (since and until: the
-- first offset and the one behind the last). If it dies in a marked batch, its successor begins those messages alone and
-- counts how often: that is how a message that kills its process is found.
--
-- `position` is the offset up to which this database knows the partition. It is written in the transaction of each batch,
-- so that a restored database does not skip what it has lost, whatever Kafka says. It counts for the topic with this id:
-- a topic that was deleted and made anew has another. NULL, until a consumer begins there: Kafka's offset counts.
CREATE TABLE ferryman.inbox_start (
    consumer  text NOT NULL,
    topic     text NOT NULL,
    partition integer NOT NULL,
    owned     boolean NOT NULL,
    "offset"  bigint,
    starts    integer NOT NULL DEFAULT 0,
    since     bigint NOT NULL DEFAULT 0,
    until     bigint NOT NULL DEFAULT 0,
    position  bigint,
    topic_id  text,
    PRIMARY KEY (consumer, topic, partition)
) WITH (fillfactor = 50);

CREATE TABLE ferryman.inbox_paused (
    consumer text PRIMARY KEY,
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    who      text NOT NULL,
    reason   text NOT NULL
);
