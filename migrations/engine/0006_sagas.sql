-- The function of the guards of a machine's table, called with the machine's name and the name of its state column. It runs
-- only for changes that are refused, so it may take its time to say why.
CREATE FUNCTION ferryman.saga_refuse() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

-- Results that changed nothing: LATE if the saga was in another state by then, UNKNOWN if there is no such saga, FORGED if
-- the saga never asked for the result.
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
COMMENT ON COLUMN ferryman.saga_stray.saga_number IS 'the key, if the machine''s keys are numbers';
CREATE INDEX saga_stray_of ON ferryman.saga_stray (saga_id) WHERE saga_id IS NOT NULL;
CREATE INDEX saga_stray_of_number ON ferryman.saga_stray (machine, saga_number) WHERE saga_number IS NOT NULL;
CREATE INDEX saga_stray_by_age ON ferryman.saga_stray (machine, came_at);

-- The time of a machine's sagas counts only while everybody listens. The clock stands at the last moment up to which all that
-- was sent has been read. A gap is kept as a silence, and what was on its way is due that much later; no row of a saga is
-- written for that.
CREATE TABLE ferryman.saga_clock (
    machine  text PRIMARY KEY,
    heard_at timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE ferryman.saga_silence (
    machine text NOT NULL,
    since   timestamptz NOT NULL,
    until   timestamptz NOT NULL,
    PRIMARY KEY (machine, until)
);

-- Returns how long nobody listened after a time.
CREATE FUNCTION ferryman.saga_silent(machine text, after timestamptz) RETURNS interval LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT coalesce(sum(s.until - greatest(s.since, saga_silent.after)), interval '0')
    FROM ferryman.saga_silence s WHERE s.machine = saga_silent.machine AND s.until > saga_silent.after;
END;

-- Returns since when something waits here to be published that may be for one of these topics, or NULL. A saga's service asks
-- for its commands, and in a participant's database for the results that come from there. The relay reads in order, so the
-- first entry that it has not read is looked at, whatever its topic.
CREATE FUNCTION ferryman.saga_unpublished_since(topics text[]) RETURNS timestamptz LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    RETURN least(
        (SELECT min(p.since) FROM ferryman.outbox_parked_topic p WHERE p.topic = ANY (topics)),
        (SELECT min(u.created_at) FROM ferryman.outbox_places p
         CROSS JOIN LATERAL ferryman.outbox_unread(
             p.lanes, p.done, p.done_at, p.horizon, NULL, CASE WHEN p.target IS NULL THEN 0 ELSE p.position END, 1) u
         WHERE NOT ferryman.outbox_settled(u.xid, u.position, p.done, p.target, p.position))
    );
END $$;
REVOKE EXECUTE ON FUNCTION ferryman.saga_unpublished_since FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ferryman.saga_unpublished_since TO ferryman_monitor;

-- Advances the clock of a machine to the moment up to which everything has been read, so many seconds ago. Steps of up to 2 s
-- are no gap; nor is any time in which no saga was on its way (`idle`). Returns the age of the clock.
CREATE FUNCTION ferryman.saga_heard(machine text, age_seconds float8, topics text[], idle boolean)
    RETURNS float8 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    heard timestamptz := least(clock_timestamp() - make_interval(secs => age_seconds),
                               ferryman.saga_unpublished_since(topics));
    before timestamptz;
BEGIN
    INSERT INTO ferryman.saga_clock AS c VALUES (machine, '-infinity') ON CONFLICT ON CONSTRAINT saga_clock_pkey DO NOTHING;
    SELECT c.heard_at INTO before FROM ferryman.saga_clock c WHERE c.machine = saga_heard.machine FOR UPDATE;
    IF heard > before THEN
        UPDATE ferryman.saga_clock c SET heard_at = heard WHERE c.machine = saga_heard.machine;
        IF heard - interval '2 s' > before AND NOT idle THEN
            INSERT INTO ferryman.saga_silence VALUES (machine, before, heard);
            DELETE FROM ferryman.saga_silence s
            WHERE s.machine = saga_heard.machine AND s.until < heard - interval '90 days';
        END IF;
    END IF;
    RETURN extract(epoch FROM clock_timestamp() - greatest(heard, before));
END $$;

CREATE INDEX outbox_audit_given_back ON ferryman.outbox_audit (id)
    WHERE act = 'reconcile' AND filter ->> 'repair' = 'give_back';
CREATE INDEX outbox_audit_settled ON ferryman.outbox_audit (((filter ->> 'settle')::uuid))
    WHERE act = 'reconcile' AND filter ? 'settle';
CREATE INDEX outbox_audit_moved ON ferryman.outbox_audit ((filter ->> 'key')) WHERE act = 'move';
