-- The outbox of the literal mode (docs/literal-mode.md): one row for each request, sent by the relay as a described outbox.
-- A row whose attempts are used up stays PENDING: a person decides.
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
COMMENT ON COLUMN payments.outbox.uuid IS 'of the request, and the id of the message: the wallet knows it again by it';
COMMENT ON COLUMN payments.outbox.last_attempt_at IS 'when a relay claimed it: its lease';
CREATE INDEX outbox_pending ON payments.outbox (created_at, uuid) WHERE status = 'PENDING';

-- Least privilege: writers add, the relay settles, nobody removes.
GRANT USAGE ON SCHEMA payments TO ferryman_relay;
GRANT INSERT (uuid, topic, key, type, payload, content_type, headers) ON payments.outbox TO ferryman_writer;
GRANT SELECT ON payments.outbox TO ferryman_writer, ferryman_relay, ferryman_monitor;
GRANT UPDATE (status, try_count, last_error, last_attempt_at, published_at) ON payments.outbox TO ferryman_relay;
