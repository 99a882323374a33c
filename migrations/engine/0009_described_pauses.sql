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
-- The policies of the audit ask which names are bound.
GRANT SELECT ON ferryman.bound_name TO ferryman_courier;
GRANT INSERT (who, act, reason, filter, entries) ON ferryman.outbox_audit TO ferryman_courier;
CREATE POLICY courier ON ferryman.outbox_audit FOR INSERT TO ferryman_courier WITH CHECK (
    act IN ('replay', 'discard', 'pause', 'resume') AND filter ->> 'outbox' IS NOT NULL);
