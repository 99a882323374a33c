-- What fails, waits or is replayed, what is paused, who did what, and the views that say how everything stands.

-- Only an entry that fails, waits behind one, or is published once more has a row here. Rows of a lane are changed
-- only while its lock is held. The first of a parked key is RETRYING, what waits behind it is PARKED.
CREATE TABLE ferryman.outbox_exception (
    position        bigint PRIMARY KEY,
    lane            smallint NOT NULL,
    topic           text NOT NULL,
    key             text NOT NULL,
    status          text NOT NULL CHECK (status IN ('RETRYING', 'PARKED', 'FAILED', 'DISCARDED', 'REPLAYING')),
    attempts        smallint NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    error           text,
    replay          bigint,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((status IN ('RETRYING', 'REPLAYING')) = (next_attempt_at IS NOT NULL))
);
CREATE INDEX outbox_exception_due ON ferryman.outbox_exception (lane, next_attempt_at, position)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX outbox_exception_by_key ON ferryman.outbox_exception (lane, topic, key, position);

-- Keys whose later entries wait in outbox_exception, until the last of them is out.
CREATE TABLE ferryman.outbox_parked_key (
    lane  smallint NOT NULL,
    topic text NOT NULL,
    key   text NOT NULL,
    PRIMARY KEY (lane, topic, key)
);

-- Topics that Kafka refuses, or that are paused, while entries of theirs wait in outbox_exception.
CREATE TABLE ferryman.outbox_parked_topic (
    lane   smallint NOT NULL,
    topic  text NOT NULL,
    since  timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text NOT NULL,
    PRIMARY KEY (lane, topic)
);

CREATE TABLE ferryman.outbox_paused (
    topic  text PRIMARY KEY,
    since  timestamptz NOT NULL DEFAULT clock_timestamp(),
    who    text NOT NULL,
    reason text NOT NULL
);
COMMENT ON TABLE ferryman.outbox_paused IS 'topics that are not published for now; the empty name is the whole outbox';

-- Entries that are published once more, with the same id and bytes: a replay goes through the journal by position.
CREATE TABLE ferryman.outbox_replay (
    id            bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at   timestamptz,
    who           text NOT NULL,
    reason        text NOT NULL,
    filter        jsonb NOT NULL,
    rate          real,
    position      bigint NOT NULL DEFAULT 0,
    last_position bigint NOT NULL,
    entries       bigint NOT NULL DEFAULT 0
);
COMMENT ON COLUMN ferryman.outbox_replay.position IS 'what the filter matches up to here is queued; a replay that was stopped goes on from here';
COMMENT ON COLUMN ferryman.outbox_replay.rate IS 'entries a second; null is as fast as they go';

-- What people did by hand. Append-only.
CREATE TABLE ferryman.outbox_audit (
    id      bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    who     text NOT NULL,
    act     text NOT NULL CHECK (act IN ('replay', 'discard', 'pause', 'resume', 'rebase')),
    reason  text NOT NULL,
    filter  jsonb NOT NULL DEFAULT '{}',
    entries bigint NOT NULL DEFAULT 0
);

-- Transactions that were running at `done` and are visible in `target`: what they wrote up to done's last position
-- was not read yet. They stand in the snapshot's list, or have a number from its xmax (one past the latest that had
-- ended) up to the horizon and stand in no list (tried: without that range 5 to 13 % are lost). Of those in no list
-- only such are late as took their first position before done's last.
CREATE FUNCTION ferryman.outbox_late(done pg_snapshot, done_at bigint, horizon xid8, target pg_snapshot)
RETURNS SETOF xid8 LANGUAGE sql STABLE PARALLEL SAFE AS $$
    WITH RECURSIVE unlisted (xid, position) AS (
        (SELECT o.xid, o.position FROM ferryman.outbox o
         WHERE o.xid >= pg_snapshot_xmax(done) AND o.xid < horizon ORDER BY o.xid, o.position LIMIT 1)
        UNION ALL
        SELECT next.xid, next.position
        FROM unlisted CROSS JOIN LATERAL (
            SELECT o.xid, o.position FROM ferryman.outbox o
            WHERE o.xid > unlisted.xid AND o.xid < horizon ORDER BY o.xid, o.position LIMIT 1
        ) next
    )
    SELECT running.xid
    FROM (SELECT pg_snapshot_xip(done) UNION ALL SELECT xid FROM unlisted WHERE position <= done_at) running (xid)
    WHERE pg_visible_in_snapshot(running.xid, target)
$$;

-- Whether there is anything to publish now. What an idle relay asks, many times a second.
CREATE FUNCTION ferryman.outbox_peek() RETURNS boolean LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM ferryman.outbox_paused WHERE topic = '') THEN
        RETURN false;
    END IF;
    RETURN EXISTS (
        SELECT FROM unnest('{0,1,2,3,4,5,6,7}'::smallint[]) l (lane)
        CROSS JOIN LATERAL (
            SELECT FROM ferryman.outbox_exception e
            WHERE e.lane = l.lane AND e.next_attempt_at <= statement_timestamp() LIMIT 1
        ) due
    ) OR EXISTS (
        SELECT FROM (
            SELECT w.snapshot AS done, w.position_at AS done_at, w.horizon, l.lanes, l.unfinished
            FROM (
                SELECT done, array_agg(lane) AS lanes, bool_or(target IS NOT NULL) AS unfinished
                FROM ferryman.outbox_lanes GROUP BY done
            ) l
            JOIN ferryman.outbox_window w ON w.id = l.done
        ) place
        WHERE place.unfinished
           OR EXISTS (
                SELECT FROM ferryman.outbox o
                WHERE o.position > place.done_at AND o.lane = ANY (place.lanes)
                  AND NOT pg_visible_in_snapshot(o.xid, place.done)
           )
           OR EXISTS (
                SELECT FROM ferryman.outbox_late(place.done, place.done_at, place.horizon, pg_current_snapshot()) late (xid)
                CROSS JOIN LATERAL (
                    SELECT FROM ferryman.outbox o
                    WHERE (o.xid, o.position) >= (late.xid, 0) AND (o.xid, o.position) <= (late.xid, place.done_at)
                      AND o.lane = ANY (place.lanes)
                    ORDER BY o.xid, o.position LIMIT 1
                ) entry
           )
    );
END $$;

-- Each entry with what became of it.
CREATE VIEW ferryman.outbox_entries AS
SELECT o.position, o.id, o.topic, o.key, o.type, o.lane, o.segment, o.xid, o.created_at, o.headers, o.content_type,
       octet_length(o.payload) AS payload_bytes,
       CASE
           WHEN e.status IS NOT NULL THEN e.status
           WHEN pg_visible_in_snapshot(o.xid, l.done_snapshot) THEN 'PUBLISHED'
           WHEN pg_visible_in_snapshot(o.xid, l.target_snapshot) AND o.position <= l.position THEN 'PUBLISHED'
           ELSE 'PENDING'
       END AS status,
       coalesce(e.attempts, 0::smallint) AS attempts, e.next_attempt_at, e.error, e.replay, e.changed_at
FROM ferryman.outbox o
JOIN ferryman.outbox_lanes l ON l.lane = o.lane
LEFT JOIN ferryman.outbox_exception e ON e.position = o.position;

-- What is still to do, per topic. Looks only at what the windows have not done, however much is retained; lanes that
-- stand at the same place are looked at together. The planner, left alone, would read all that is retained.
CREATE FUNCTION ferryman.outbox_backlog() RETURNS TABLE (
    topic text, pending bigint, oldest_at timestamptz, oldest_age_seconds float8,
    retrying bigint, parked bigint, failed bigint
) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH place AS (
        SELECT d.snapshot AS done, d.position_at AS done_at, d.horizon, t.snapshot AS target, l.position, l.lanes
        FROM (
            SELECT done, target, position, array_agg(lane) AS lanes FROM ferryman.outbox_lanes
            GROUP BY done, target, position
        ) l
        JOIN ferryman.outbox_window d ON d.id = l.done
        LEFT JOIN ferryman.outbox_window t ON t.id = l.target
    ), unread AS (
        SELECT w.topic, w.created_at
        FROM place p
        CROSS JOIN LATERAL (
            SELECT o.topic, o.created_at, o.xid, o.position FROM ferryman.outbox o
            WHERE o.position > p.done_at AND o.lane = ANY (p.lanes) AND NOT pg_visible_in_snapshot(o.xid, p.done)
            UNION ALL
            SELECT o.topic, o.created_at, o.xid, o.position
            FROM ferryman.outbox_late(p.done, p.done_at, p.horizon, pg_current_snapshot()) late (xid)
            CROSS JOIN LATERAL (
                SELECT * FROM ferryman.outbox e
                WHERE (e.xid, e.position) >= (late.xid, 0) AND (e.xid, e.position) <= (late.xid, p.done_at)
                ORDER BY e.xid, e.position
            ) o
            WHERE o.lane = ANY (p.lanes)
        ) w
        WHERE p.target IS NULL OR w.position > p.position OR NOT pg_visible_in_snapshot(w.xid, p.target)
    ), pending AS (
        SELECT topic, count(*) AS entries, min(created_at) AS oldest FROM unread GROUP BY topic
    ), failing AS (
        SELECT e.topic,
               count(*) FILTER (WHERE e.status IN ('RETRYING', 'REPLAYING')) AS retrying,
               count(*) FILTER (WHERE e.status = 'PARKED') AS parked,
               count(*) FILTER (WHERE e.status = 'FAILED') AS failed,
               min(o.created_at) FILTER (WHERE e.status IN ('RETRYING', 'PARKED')) AS oldest
        FROM ferryman.outbox_exception e JOIN ferryman.outbox o USING (position)
        WHERE e.status <> 'DISCARDED'
        GROUP BY e.topic
    )
    SELECT topic, coalesce(p.entries, 0), least(p.oldest, f.oldest),
           extract(epoch FROM clock_timestamp() - least(p.oldest, f.oldest))::float8,
           coalesce(f.retrying, 0), coalesce(f.parked, 0), coalesce(f.failed, 0)
    FROM pending p FULL JOIN failing f USING (topic)
$$;
CREATE VIEW ferryman.backlog AS SELECT * FROM ferryman.outbox_backlog();

GRANT SELECT, INSERT, UPDATE, DELETE ON ferryman.outbox_exception, ferryman.outbox_parked_key,
    ferryman.outbox_parked_topic, ferryman.outbox_paused TO ferryman_relay;
GRANT SELECT, INSERT, UPDATE ON ferryman.outbox_replay TO ferryman_relay;
GRANT SELECT, INSERT ON ferryman.outbox_audit TO ferryman_relay;
GRANT SELECT ON ferryman.outbox_exception, ferryman.outbox_parked_key, ferryman.outbox_parked_topic,
    ferryman.outbox_paused, ferryman.outbox_replay, ferryman.outbox_audit, ferryman.outbox_entries, ferryman.backlog
    TO ferryman_monitor, ferryman_relay;
