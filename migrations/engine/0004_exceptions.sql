-- Entries that failed, wait or are replayed, pauses, the audit, and the functions and views that say which entries are
-- published.

-- Only an entry that failed, waits behind a failed one, or is published once more has a row here. Rows of a lane are
-- changed only while the lane's lock is held. The first entry of a parked key is RETRYING, those behind it are PARKED.
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

-- Keys whose later entries wait in outbox_exception, until the last of them is published.
CREATE TABLE ferryman.outbox_parked_key (
    lane  smallint NOT NULL,
    topic text NOT NULL,
    key   text NOT NULL,
    PRIMARY KEY (lane, topic, key)
);

-- Topics that Kafka refuses, or that are paused, while entries for them wait in outbox_exception.
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
COMMENT ON TABLE ferryman.outbox_paused IS 'paused topics; the empty name is the whole outbox';

-- Replays publish entries once more, with the same id and bytes. They go through the journal by position.
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
COMMENT ON COLUMN ferryman.outbox_replay.position IS 'all matching entries up to this position are queued; a stopped replay continues here';
COMMENT ON COLUMN ferryman.outbox_replay.rate IS 'entries per second; null means no limit';

-- Acts by hand, on the outbox and on inboxes and sagas. Append-only. The filter of an act on an inbox names a consumer.
CREATE TABLE ferryman.outbox_audit (
    id      bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    who     text NOT NULL,
    act     text NOT NULL CHECK (act IN (
        'replay', 'discard', 'pause', 'resume', 'rebase', 'requeue', 'archive', 'reconcile', 'resolve', 'move'
    )),
    reason  text NOT NULL,
    filter  jsonb NOT NULL DEFAULT '{}',
    entries bigint NOT NULL DEFAULT 0
);

-- Is this entry published? These three functions are the only place that answers from windows; the relay's reads, the
-- views and the commands call them. All three are inlined into the statement that calls them.

-- True if a lane has published or recorded this entry: it is visible in the window that is done, or in the window that
-- is being read and not past the position that was read to. Pass NULL as target and read_to to ask for `done` alone.
CREATE FUNCTION ferryman.outbox_settled(
    xid xid8, "position" bigint, done pg_snapshot, target pg_snapshot, read_to bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT pg_visible_in_snapshot(xid, done)
        OR (target IS NOT NULL AND pg_visible_in_snapshot(xid, target) AND position <= read_to);
END;

-- Return the transactions that were running at `done` and are visible in `target`: what they wrote up to done's last
-- position was not read yet. They stand in the snapshot's list, or they have a number from its xmax (one past the
-- latest that had ended) up to the horizon and stand in no list (tried: without that range 5 to 13 % are lost). Of the
-- unlisted ones only those are late that took their first position before done's last.
CREATE FUNCTION ferryman.outbox_late(done pg_snapshot, done_at bigint, horizon xid8, target pg_snapshot)
RETURNS SETOF xid8 LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
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
    WHERE pg_visible_in_snapshot(running.xid, target);
END;

-- Return the entries after position `past` of these lanes that became visible between `done` and `target`; with a NULL
-- target, up to now. `most` bounds each part (new entries, and each late transaction), not the sum; NULL is no bound.
-- Late entries have positions up to that of `done`. They are probed transaction by transaction, because an OR would let
-- the planner read all that is retained (tried: 900 ms instead of 0.1); and by comparing rows, because for a single
-- transaction number the planner would take the index of positions and read all of them.
CREATE FUNCTION ferryman.outbox_unread(
    lanes smallint[], done pg_snapshot, done_at bigint, horizon xid8, target pg_snapshot, past bigint, most bigint
) RETURNS SETOF ferryman.outbox LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    (SELECT o.* FROM ferryman.outbox o
     WHERE o.position > greatest(past, done_at) AND o.lane = ANY (lanes)
       AND pg_visible_in_snapshot(o.xid, target) IS NOT FALSE AND NOT pg_visible_in_snapshot(o.xid, done)
     ORDER BY o.position LIMIT most)
    UNION ALL
    (SELECT late.*
     FROM ferryman.outbox_late(done, done_at, horizon, coalesce(target, pg_current_snapshot())) running (xid)
     CROSS JOIN LATERAL (
        SELECT o.* FROM ferryman.outbox o
        WHERE (o.xid, o.position) > (running.xid, past) AND (o.xid, o.position) <= (running.xid, done_at)
          AND o.lane = ANY (lanes)
        ORDER BY o.xid, o.position LIMIT most
     ) late);
END;

-- The lanes grouped by how far they were read, so that lanes at the same place are looked at together.
CREATE VIEW ferryman.outbox_places AS
SELECT l.lanes, l.position, d.snapshot AS done, d.position_at AS done_at, d.horizon, t.snapshot AS target
FROM (
    SELECT done, target, position, array_agg(lane) AS lanes FROM ferryman.outbox_lanes GROUP BY done, target, position
) l
JOIN ferryman.outbox_window d ON d.id = l.done
LEFT JOIN ferryman.outbox_window t ON t.id = l.target;

-- True if there is anything to publish now. An idle relay asks this many times a second.
CREATE FUNCTION ferryman.outbox_peek() RETURNS boolean LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
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
        SELECT FROM ferryman.outbox_places p
        WHERE p.target IS NOT NULL
           OR EXISTS (SELECT FROM ferryman.outbox_unread(p.lanes, p.done, p.done_at, p.horizon, NULL, 0, 1))
    );
END $$;

-- Every entry with its status.
CREATE VIEW ferryman.outbox_entries AS
SELECT o.position, o.id, o.topic, o.key, o.type, o.lane, o.segment, o.xid, o.created_at, o.headers, o.content_type,
       octet_length(o.payload) AS payload_bytes,
       CASE
           WHEN e.status IS NOT NULL THEN e.status
           WHEN ferryman.outbox_settled(o.xid, o.position, l.done_snapshot, l.target_snapshot, l.position)
               THEN 'PUBLISHED'
           ELSE 'PENDING'
       END AS status,
       coalesce(e.attempts, 0::smallint) AS attempts, e.next_attempt_at, e.error, e.replay, e.changed_at
FROM ferryman.outbox o
JOIN ferryman.outbox_lanes l ON l.lane = o.lane
LEFT JOIN ferryman.outbox_exception e ON e.position = o.position;

-- Unpublished entries per topic. It reads only what the windows have not done, however much is retained. Left alone,
-- the planner would read everything.
CREATE FUNCTION ferryman.outbox_backlog() RETURNS TABLE (
    topic text, pending bigint, oldest_at timestamptz, oldest_age_seconds float8,
    retrying bigint, parked bigint, failed bigint
) LANGUAGE sql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH pending AS (
        SELECT u.topic, count(*) AS entries, min(u.created_at) AS oldest
        FROM ferryman.outbox_places p
        CROSS JOIN LATERAL ferryman.outbox_unread(p.lanes, p.done, p.done_at, p.horizon, NULL, 0, NULL) u
        WHERE NOT ferryman.outbox_settled(u.xid, u.position, p.done, p.target, p.position)
        GROUP BY u.topic
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
REVOKE EXECUTE ON FUNCTION ferryman.outbox_backlog FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ferryman.outbox_backlog TO ferryman_monitor, ferryman_relay;
CREATE VIEW ferryman.backlog AS SELECT * FROM ferryman.outbox_backlog();

GRANT SELECT, INSERT, UPDATE, DELETE ON ferryman.outbox_exception, ferryman.outbox_parked_key,
    ferryman.outbox_parked_topic TO ferryman_relay;
-- The name behind an act is signed when it is written, and never changed.
GRANT SELECT, INSERT, DELETE ON ferryman.outbox_paused TO ferryman_relay;
GRANT SELECT, INSERT, UPDATE (position, entries, finished_at) ON ferryman.outbox_replay TO ferryman_relay;
GRANT INSERT (who, act, reason, filter, entries) ON ferryman.outbox_audit TO ferryman_relay;
GRANT SELECT ON ferryman.outbox_exception, ferryman.outbox_parked_key, ferryman.outbox_parked_topic,
    ferryman.outbox_paused, ferryman.outbox_replay, ferryman.outbox_audit, ferryman.outbox_entries,
    ferryman.outbox_places, ferryman.backlog
    TO ferryman_monitor, ferryman_relay;
