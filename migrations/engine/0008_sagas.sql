-- What the guards of a machine's table call, with its name and its column of states: only for what is refused, so it may
-- take its time to say why.
CREATE FUNCTION ferryman.saga_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was text := CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN to_jsonb(OLD) ->> TG_ARGV[1] END;
    goes text := CASE WHEN TG_OP IN ('UPDATE', 'INSERT') THEN to_jsonb(NEW) ->> TG_ARGV[1] END;
BEGIN
    RAISE integrity_constraint_violation USING
        MESSAGE = format('the machine %s refuses this %s: %s', TG_ARGV[0], TG_OP, CASE
            WHEN TG_OP = 'INSERT' THEN 'a row does not begin as ' || goes
            WHEN TG_OP IN ('DELETE', 'TRUNCATE') THEN 'rows leave by archive(), once they are over'
            WHEN TG_NAME LIKE '%\_ended' THEN 'what is ' || was || ' is over'
            WHEN was <> goes THEN was || ' does not lead to ' || goes
            ELSE 'the key of a row stays'
        END),
        TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
END $$;

-- Results that were applied to nothing: LATE where the saga was elsewhere by then, UNKNOWN where there is none, FORGED
-- where it never asked for such a thing.
CREATE TABLE ferryman.saga_stray (
    machine     text NOT NULL,
    message_id  uuid NOT NULL,
    saga_id     uuid,
    saga_number bigint,
    why         text NOT NULL CHECK (why IN ('LATE', 'UNKNOWN', 'FORGED')),
    type        text NOT NULL,
    data        jsonb NOT NULL,
    came_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (machine, message_id),
    CHECK (num_nonnulls(saga_id, saga_number) = 1)
);
COMMENT ON COLUMN ferryman.saga_stray.saga_number IS 'of a machine whose keys are numbers';
CREATE INDEX saga_stray_of ON ferryman.saga_stray (saga_id) WHERE saga_id IS NOT NULL;
CREATE INDEX saga_stray_of_number ON ferryman.saga_stray (machine, saga_number) WHERE saga_number IS NOT NULL;
CREATE INDEX saga_stray_by_age ON ferryman.saga_stray (machine, came_at);

ALTER TABLE ferryman.outbox_audit DROP CONSTRAINT outbox_audit_act_check;
ALTER TABLE ferryman.outbox_audit ADD CONSTRAINT outbox_audit_act_check
    CHECK (act IN ('replay', 'discard', 'pause', 'resume', 'rebase', 'requeue', 'archive', 'reconcile'));
CREATE INDEX outbox_audit_given_back ON ferryman.outbox_audit (id)
    WHERE act = 'reconcile' AND filter ->> 'repair' = 'give_back';
CREATE INDEX outbox_audit_settled ON ferryman.outbox_audit (((filter ->> 'settle')::uuid))
    WHERE act = 'reconcile' AND filter ? 'settle';

GRANT SELECT, INSERT, DELETE ON ferryman.saga_stray TO ferryman_consumer;
GRANT SELECT ON ferryman.saga_stray TO ferryman_monitor;
