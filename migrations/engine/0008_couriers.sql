-- The attempts to deliver rows of described tables by a channel.
CREATE TABLE ferryman.outbox_attempt (
    outbox text NOT NULL,
    row_id text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    outcome text NOT NULL CHECK (outcome IN ('delivered', 'failed', 'rejected', 'unknown', 'unavailable', 'lost',
        'held', 'reopened', 'resolved')),
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
-- Each courier forgets the old attempts of its own outbox.
CREATE INDEX outbox_attempt_by_age ON ferryman.outbox_attempt (outbox, ended_at);

GRANT SELECT, INSERT, DELETE ON ferryman.outbox_attempt TO ferryman_courier;
GRANT SELECT ON ferryman.outbox_attempt TO ferryman_monitor;
SELECT ferryman.guard_by_name('outbox_attempt', 'outbox');

-- Acts by hand on described tables: what is paused, and the audit of those who operate couriers.
CREATE TABLE ferryman.described_paused (
    outbox      text NOT NULL,
    destination text NOT NULL DEFAULT '',
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    who         text NOT NULL,
    reason      text NOT NULL,
    PRIMARY KEY (outbox, destination)
);
COMMENT ON TABLE ferryman.described_paused IS 'paused described outboxes; the empty destination is the whole outbox';
CREATE TRIGGER signed BEFORE INSERT ON ferryman.described_paused FOR EACH ROW EXECUTE FUNCTION ferryman.sign();

GRANT SELECT, INSERT, DELETE ON ferryman.described_paused TO ferryman_relay, ferryman_courier;
GRANT SELECT ON ferryman.described_paused TO ferryman_monitor;
SELECT ferryman.guard_by_name('described_paused', 'outbox');
CREATE POLICY relay ON ferryman.described_paused TO ferryman_relay USING (
    outbox <> ALL ((SELECT ferryman.bound_names('outbox'))::text[]));
-- The policies of the audit ask which names are bound.
GRANT SELECT ON ferryman.bound_name TO ferryman_courier;
GRANT INSERT (who, act, reason, filter, entries) ON ferryman.outbox_audit TO ferryman_courier;
CREATE POLICY courier ON ferryman.outbox_audit FOR INSERT TO ferryman_courier WITH CHECK (
    act IN ('replay', 'discard', 'pause', 'resume', 'resolve') AND filter ->> 'outbox' IS NOT NULL
    AND filter ->> 'outbox' <> ALL (ferryman.bound_names('outbox')));
CREATE POLICY own_outbox ON ferryman.outbox_audit FOR INSERT WITH CHECK (
    act IN ('replay', 'discard', 'pause', 'resume', 'resolve')
    AND filter ->> 'outbox' = ANY (ferryman.own_names('outbox')));
