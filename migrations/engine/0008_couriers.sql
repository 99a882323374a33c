-- The attempts to deliver rows of described tables by a channel.
CREATE TABLE ferryman.outbox_attempt (
    outbox text NOT NULL,
    row_id text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz DEFAULT clock_timestamp(),
    outcome text NOT NULL CHECK (outcome IN ('begun', 'delivered', 'failed', 'rejected', 'unknown', 'unavailable',
        'lost', 'held', 'reopened', 'resolved')),
    code text,
    error text,
    reference text,
    excerpt text,
    content text,
    provider text,
    number bigint GENERATED ALWAYS AS IDENTITY,
    -- A claim is known by its lease: settling it twice records it once.
    PRIMARY KEY (outbox, row_id, began_at)
);
COMMENT ON TABLE ferryman.outbox_attempt IS 'Every attempt to deliver a row of a described table by a channel';
COMMENT ON COLUMN ferryman.outbox_attempt.began_at IS 'The lease of the claim';
COMMENT ON COLUMN ferryman.outbox_attempt.ended_at IS 'Null until the end of a mail''s attempt is known';
COMMENT ON COLUMN ferryman.outbox_attempt.number IS 'The order of attempts and decisions, whatever the clock does';
COMMENT ON COLUMN ferryman.outbox_attempt.reference IS 'What the receiver calls the message';
COMMENT ON COLUMN ferryman.outbox_attempt.excerpt IS 'The beginning of the answer';
COMMENT ON COLUMN ferryman.outbox_attempt.content IS 'A hash of what was sent';
COMMENT ON COLUMN ferryman.outbox_attempt.provider IS 'Who was to deliver the mail: another one knows nothing about it';
-- Each courier forgets the old attempts of its own outbox. No indexed column changes when an attempt ends.
CREATE INDEX outbox_attempt_by_age ON ferryman.outbox_attempt (outbox, began_at);

-- Deletes some of an outbox's old attempts, none younger than an hour, and returns how many. The attempts that may have sent a
-- mail are kept until it is known what became of it.
CREATE FUNCTION ferryman.outbox_forget_attempts(outbox text, seconds float8, most integer, mails boolean) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted bigint;
BEGIN
    DELETE FROM ferryman.outbox_attempt WHERE ctid = ANY (ARRAY(
        SELECT o.ctid FROM ferryman.outbox_attempt o
        WHERE o.outbox = outbox_forget_attempts.outbox
          AND o.began_at < statement_timestamp() - make_interval(secs => greatest(seconds, 3600))
          AND (NOT mails OR o.outcome NOT IN ('begun', 'lost', 'unknown', 'held') OR EXISTS (
              SELECT FROM ferryman.outbox_attempt d
              WHERE d.outbox = o.outbox AND d.row_id = o.row_id AND d.number > o.number
                AND d.outcome IN ('delivered', 'resolved', 'reopened')))
          AND pg_has_role(session_user, to_regrole(coalesce(
              (SELECT b.role FROM ferryman.bound_name b WHERE (b.kind, b.name) = ('outbox', outbox_forget_attempts.outbox)),
              'ferryman_courier')), 'MEMBER')
        ORDER BY o.began_at LIMIT most
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $$;
REVOKE EXECUTE ON FUNCTION ferryman.outbox_forget_attempts FROM PUBLIC;

-- The claim of a mail is completed when its attempt ends, or deleted if there was none. The end of an attempt stays.
GRANT SELECT, INSERT, DELETE, UPDATE (ended_at, outcome, code, error, reference, excerpt) ON ferryman.outbox_attempt
    TO ferryman_courier;
CREATE POLICY not_ended ON ferryman.outbox_attempt AS RESTRICTIVE FOR UPDATE
    USING (outcome = 'begun') WITH CHECK (outcome NOT IN ('begun', 'resolved', 'reopened'));
CREATE POLICY not_tried ON ferryman.outbox_attempt AS RESTRICTIVE FOR DELETE USING (outcome = 'begun');
GRANT EXECUTE ON FUNCTION ferryman.outbox_forget_attempts TO ferryman_courier;
GRANT SELECT ON ferryman.outbox_attempt TO ferryman_monitor;
SELECT ferryman.guard_by_name('outbox_attempt', 'outbox');

-- A mail that was resolved may be sent again: whoever writes such an attempt has written the act into the audit, in the same
-- transaction.
CREATE FUNCTION ferryman.check_decision() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM ferryman.outbox_audit a
        WHERE a.at >= transaction_timestamp() AND a.act = 'resolve' AND a.filter ->> 'outbox' = NEW.outbox
          AND a.filter -> 'ids' ? NEW.row_id
    ) AND NOT (SELECT pg_has_role(session_user, c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = TG_RELID) THEN
        RAISE insufficient_privilege USING MESSAGE = format(
            'an attempt that was %s by hand needs its act in the audit: use `ferryman outbox resolve`', NEW.outcome);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER decision AFTER INSERT ON ferryman.outbox_attempt DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.outcome IN ('resolved', 'reopened')) EXECUTE FUNCTION ferryman.check_decision();

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
