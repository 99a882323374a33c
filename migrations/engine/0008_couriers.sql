-- The attempts to deliver rows of described tables by a channel.
CREATE TABLE ferryman.outbox_attempt (
    outbox text NOT NULL,
    row_id text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    outcome text NOT NULL CHECK (outcome IN ('delivered', 'failed', 'rejected', 'unknown', 'unavailable', 'lost')),
    code text,
    error text,
    reference text,
    excerpt text,
    content text,
    -- A claim is known by its lease: settling it twice records it once.
    PRIMARY KEY (outbox, row_id, began_at)
);
COMMENT ON TABLE ferryman.outbox_attempt IS 'Every attempt to deliver a row of a described table by a channel';
COMMENT ON COLUMN ferryman.outbox_attempt.began_at IS 'The lease of the claim';
COMMENT ON COLUMN ferryman.outbox_attempt.reference IS 'What the receiver calls the message';
COMMENT ON COLUMN ferryman.outbox_attempt.excerpt IS 'The beginning of the answer';
COMMENT ON COLUMN ferryman.outbox_attempt.content IS 'A hash of what was sent';
CREATE INDEX outbox_attempt_by_age ON ferryman.outbox_attempt (ended_at);

GRANT SELECT, INSERT, DELETE ON ferryman.outbox_attempt TO ferryman_courier;
GRANT SELECT ON ferryman.outbox_attempt TO ferryman_monitor;
