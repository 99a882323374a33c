-- A row for each message that a consumer has a verdict on, written in the transaction of its effects.
--
--   HANDLED    the effects and the results are committed
--   RECEIVED   at_most_once: committed before it is handled; one that stays so had no effect, and never will
--   REJECTED   it could not be handled; inbox_rejected has the record
--   REOPENED   it was rejected, and a person had it published once more
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
COMMENT ON TABLE ferryman.inbox IS 'the verdict on each message, by consumer and id: what stands here has no effect again';
COMMENT ON COLUMN ferryman.inbox.results IS 'what was reported, to be reported again with the same ids and bytes';
CREATE INDEX inbox_by_age ON ferryman.inbox (consumer, received_at);
CREATE INDEX inbox_unusual ON ferryman.inbox (consumer, status, received_at) WHERE status <> 'HANDLED';

-- What is known of these messages. Planned anew each time: a plan that was made while the table was small would be kept,
-- and read all of it when it is large. For the same reason each is looked up by itself (OFFSET 0): before the table was
-- analyzed, a consumer is thought to have few.
CREATE FUNCTION ferryman.inbox_known(consumer text, ids uuid[])
    RETURNS TABLE (id uuid, status text, hash bytea, results text) LANGUAGE plpgsql STABLE
    SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT k.id, k.status, k.hash, k.results
    FROM unnest(ids) n (id) CROSS JOIN LATERAL (
        SELECT i.id, i.status, i.hash, i.results FROM ferryman.inbox i
        WHERE i.consumer = inbox_known.consumer AND i.id = n.id OFFSET 0
    ) k;
END $$;

-- A batch that is being handled has its number here twice, and deletes it with its verdicts: a COMMIT before that is
-- refused, so that no handler can keep half of a batch. (A constraint and no trigger: it asks nothing of the server.)
CREATE TABLE ferryman.inbox_open (
    xid xid8 NOT NULL,
    CONSTRAINT only_the_runtime_commits UNIQUE (xid) DEFERRABLE INITIALLY DEFERRED
);

-- The records that were rejected, as Kafka had them, by where they stood.
CREATE TABLE ferryman.inbox_rejected (
    consumer    text NOT NULL,
    topic       text NOT NULL,
    partition   integer NOT NULL,
    "offset"    bigint NOT NULL,
    id          uuid NOT NULL,
    type        text NOT NULL,
    key         bytea,
    value       bytea,
    headers     jsonb NOT NULL,
    code        text NOT NULL,
    error       text NOT NULL,
    status      text NOT NULL DEFAULT 'REJECTED' CHECK (status IN ('REJECTED', 'REQUEUED', 'DISCARDED')),
    rejected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at  timestamptz,
    who         text,
    reason      text,
    PRIMARY KEY (consumer, topic, partition, "offset")
);
CREATE INDEX inbox_rejected_by_id ON ferryman.inbox_rejected (consumer, id);
CREATE INDEX inbox_rejected_waiting ON ferryman.inbox_rejected (consumer, rejected_at) WHERE status = 'REJECTED';

-- Of each partition, whether its last owner let go of it in order. If not, the next marks its batches (since and until:
-- the first offset and the one behind); if it dies of a marked one, whoever comes then begins those messages singly, so
-- that a message that kills its process is found: by how often it was begun alone.
CREATE TABLE ferryman.inbox_start (
    consumer  text NOT NULL,
    topic     text NOT NULL,
    partition integer NOT NULL,
    owned     boolean NOT NULL,
    "offset"  bigint,
    starts    integer NOT NULL DEFAULT 0,
    since     bigint NOT NULL DEFAULT 0,
    until     bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, topic, partition)
) WITH (fillfactor = 50);

CREATE TABLE ferryman.inbox_paused (
    consumer text PRIMARY KEY,
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    who      text NOT NULL,
    reason   text NOT NULL
);

-- Least privilege: a verdict is written once, changed only where it was not the last word, and read by whoever looks.
GRANT SELECT, INSERT, UPDATE, DELETE ON ferryman.inbox TO ferryman_consumer;
GRANT SELECT, INSERT, DELETE ON ferryman.inbox_open TO ferryman_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON ferryman.inbox_rejected TO ferryman_consumer;
GRANT SELECT, INSERT, UPDATE ON ferryman.inbox_start TO ferryman_consumer;
GRANT SELECT ON ferryman.inbox_paused TO ferryman_consumer;
GRANT SELECT ON ferryman.inbox, ferryman.inbox_rejected, ferryman.inbox_start, ferryman.inbox_paused TO ferryman_monitor;
