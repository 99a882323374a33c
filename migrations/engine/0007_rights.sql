-- Rights on inboxes, sagas and described outboxes. They go by name: a name that is bound to a role is that role's alone, and
-- every other name is that of the members of ferryman_consumer, or of ferryman_courier if it is an outbox.

CREATE TABLE ferryman.bound_name (
    kind text NOT NULL CHECK (kind IN ('consumer', 'machine', 'outbox')),
    name text NOT NULL,
    role text NOT NULL,
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE ferryman.bound_name IS 'consumers, machines and described outboxes whose rows only one role may read and change';
COMMENT ON COLUMN ferryman.bound_name.role IS 'its name, quoted where needed: a dump is restored before its roles exist';
GRANT SELECT ON ferryman.bound_name TO ferryman_writer, ferryman_relay, ferryman_consumer, ferryman_monitor;

-- Returns the role that has the names which are not bound.
CREATE FUNCTION ferryman.usual_role(kind text) RETURNS regrole LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT to_regrole(CASE kind WHEN 'outbox' THEN 'ferryman_courier' ELSE 'ferryman_consumer' END);
END;

CREATE FUNCTION ferryman.bound_names(kind text) RETURNS text[] LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT ARRAY(SELECT b.name FROM ferryman.bound_name b WHERE b.kind = bound_names.kind);
END;

-- Returns the names that are bound to a role of the current user.
CREATE FUNCTION ferryman.own_names(kind text) RETURNS text[] LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT ARRAY(
        SELECT b.name FROM ferryman.bound_name b WHERE b.kind = own_names.kind AND pg_has_role(to_regrole(b.role), 'USAGE')
    );
END;

-- Subqueries are evaluated once for a statement, and not for each row. No condition may tempt the planner to use an index by
-- the name alone: before a table was analyzed, it would read all receipts of the consumer for each message.
-- `ferryman migrate` calls this again where a policy is missing: a restore skips those whose roles do not exist.
CREATE FUNCTION ferryman.guard_by_name(name text, kind text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    policy text;
    definition text;
BEGIN
    EXECUTE format('ALTER TABLE ferryman.%I ENABLE ROW LEVEL SECURITY', name);
    FOR policy, definition IN VALUES
        ('own', format('USING ((SELECT ferryman.own_names(%L)) @> ARRAY[%I])', kind, kind)),
        ('unbound', format('TO %s USING (%I <> ALL ((SELECT ferryman.bound_names(%L))::text[]))',
                            ferryman.usual_role(kind), kind, kind)),
        ('read', 'FOR SELECT TO ferryman_monitor, ferryman_relay USING (true)')
    LOOP
        IF NOT EXISTS (
            SELECT FROM pg_policies p WHERE (p.schemaname, p.tablename, p.policyname) = ('ferryman', name, policy)
        ) THEN
            EXECUTE format('CREATE POLICY %I ON ferryman.%I %s', policy, name, definition);
        END IF;
    END LOOP;
END $$;
SELECT ferryman.guard_by_name('inbox', 'consumer');
SELECT ferryman.guard_by_name('inbox_rejected', 'consumer');
SELECT ferryman.guard_by_name('inbox_start', 'consumer');
SELECT ferryman.guard_by_name('inbox_paused', 'consumer');
SELECT ferryman.guard_by_name('saga_stray', 'machine');
SELECT ferryman.guard_by_name('saga_clock', 'machine');
SELECT ferryman.guard_by_name('saga_silence', 'machine');

-- Receipts without the payloads of their results.
CREATE VIEW ferryman.inbox_receipts WITH (security_barrier) AS
SELECT i.consumer, i.id, i.status, i.outcome, i.reason, i.hash, i.type, i.topic, i.partition, i."offset",
       (SELECT json_agg(json_build_array(r -> 0, r -> 1, r -> 2, NULL, r -> 4, r -> 5, r -> 6))::text
        FROM json_array_elements(i.results::json) r) AS results,
       i.error, i.received_at
FROM ferryman.inbox i
WHERE pg_has_role('ferryman_monitor', 'USAGE') OR i.consumer = ANY ((SELECT ferryman.own_names('consumer'))::text[])
   OR (pg_has_role('ferryman_consumer', 'USAGE') AND i.consumer <> ALL ((SELECT ferryman.bound_names('consumer'))::text[]));

-- Deletes some of a machine's old strays, none younger than an hour, and returns how many.
CREATE FUNCTION ferryman.saga_forget_strays(machine text, seconds float8, most integer) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted bigint;
BEGIN
    DELETE FROM ferryman.saga_stray WHERE ctid = ANY (ARRAY(
        SELECT s.ctid FROM ferryman.saga_stray s
        WHERE s.machine = saga_forget_strays.machine
          AND s.came_at < statement_timestamp() - make_interval(secs => greatest(seconds, 3600))
          AND pg_has_role(session_user, to_regrole(coalesce(
              (SELECT b.role FROM ferryman.bound_name b WHERE (b.kind, b.name) = ('machine', saga_forget_strays.machine)),
              'ferryman_consumer')), 'MEMBER')
        ORDER BY s.came_at LIMIT most
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $$;
REVOKE EXECUTE ON FUNCTION ferryman.saga_forget_strays FROM PUBLIC;

-- Consumers. Whoever operates a consumer needs no more than its role. Operators of either side see all pauses.
GRANT SELECT, INSERT, UPDATE, DELETE ON ferryman.inbox, ferryman.inbox_rejected TO ferryman_consumer;
GRANT SELECT, INSERT, DELETE ON ferryman.inbox_open, ferryman.inbox_paused, ferryman.saga_silence TO ferryman_consumer;
GRANT UPDATE (asked_at) ON ferryman.inbox_open TO ferryman_consumer;
GRANT SELECT, INSERT, UPDATE ON ferryman.inbox_start, ferryman.saga_clock TO ferryman_consumer;
GRANT SELECT, INSERT (machine, message_id, saga_id, saga_number, why, type, data)
    ON ferryman.saga_stray TO ferryman_consumer;
GRANT SELECT ON ferryman.inbox_receipts, ferryman.outbox_paused TO ferryman_consumer;
GRANT EXECUTE ON FUNCTION ferryman.saga_unpublished_since, ferryman.saga_forget_strays TO ferryman_consumer;
GRANT SELECT ON ferryman.inbox_paused, ferryman.inbox_start TO ferryman_relay;
-- Monitors read neither values nor results.
GRANT SELECT (consumer, id, status, outcome, reason, hash, type, topic, partition, "offset", error, received_at)
    ON ferryman.inbox TO ferryman_monitor;
GRANT SELECT (number, consumer, topic, partition, "offset", id, hash, type, key, value_bytes, headers, code, error, status,
              rejected_at, changed_at, who, reason) ON ferryman.inbox_rejected TO ferryman_monitor;
GRANT SELECT ON ferryman.inbox_receipts, ferryman.inbox_start, ferryman.inbox_paused, ferryman.saga_stray,
    ferryman.saga_clock, ferryman.saga_silence TO ferryman_monitor;

-- The audit. Each side records its own acts, a consumer's about itself; the service of a saga is granted others by its chain.
GRANT INSERT (who, act, reason, filter, entries) ON ferryman.outbox_audit TO ferryman_consumer;
ALTER TABLE ferryman.outbox_audit ENABLE ROW LEVEL SECURITY;
CREATE POLICY read ON ferryman.outbox_audit FOR SELECT USING (true);
CREATE POLICY relay ON ferryman.outbox_audit FOR INSERT TO ferryman_relay WITH CHECK (
    act IN ('replay', 'discard', 'pause', 'resume', 'rebase') OR (act = 'reconcile' AND filter ->> 'repair' = 'replay'));
CREATE POLICY own ON ferryman.outbox_audit FOR INSERT WITH CHECK (
    act IN ('requeue', 'discard', 'pause', 'resume', 'rebase') AND filter ->> 'consumer' = ANY (ferryman.own_names('consumer')));
CREATE POLICY unbound ON ferryman.outbox_audit FOR INSERT TO ferryman_consumer WITH CHECK (
    act IN ('requeue', 'discard', 'pause', 'resume', 'rebase') AND filter ->> 'consumer' <> ALL (ferryman.bound_names('consumer')));
CREATE POLICY own_saga ON ferryman.outbox_audit FOR INSERT WITH CHECK (
    act = 'move' AND filter ->> 'machine' = ANY (ferryman.own_names('machine')));
CREATE POLICY unbound_saga ON ferryman.outbox_audit FOR INSERT TO ferryman_consumer WITH CHECK (
    act = 'move' AND filter ->> 'machine' <> ALL (ferryman.bound_names('machine')));

-- Behind the name that a person gives stands the login that it came from, unless that may change the table itself.
CREATE FUNCTION ferryman.sign() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (SELECT pg_has_role(session_user, c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = TG_RELID) THEN
        NEW.who := format('%s (%s)', NEW.who, session_user);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER signed BEFORE INSERT ON ferryman.outbox_audit FOR EACH ROW EXECUTE FUNCTION ferryman.sign();
CREATE TRIGGER signed BEFORE INSERT ON ferryman.outbox_paused FOR EACH ROW EXECUTE FUNCTION ferryman.sign();
CREATE TRIGGER signed BEFORE INSERT ON ferryman.outbox_replay FOR EACH ROW EXECUTE FUNCTION ferryman.sign();
CREATE TRIGGER signed BEFORE INSERT ON ferryman.inbox_paused FOR EACH ROW EXECUTE FUNCTION ferryman.sign();
CREATE TRIGGER signed BEFORE INSERT OR UPDATE OF who ON ferryman.inbox_rejected FOR EACH ROW WHEN (NEW.who IS NOT NULL)
    EXECUTE FUNCTION ferryman.sign();

-- Grants a role everything in this schema that another one is granted: a service's role has what its process needs, and is
-- no member of the other role.
CREATE FUNCTION ferryman.grant_like(model regrole, role regrole) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format('GRANT %s ON %s TO %s', a.privilege_type, c.oid::regclass, role)
        FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
        WHERE c.relnamespace = 'ferryman'::regnamespace AND a.grantee = model
          AND (c.relname = 'version_engine' OR c.relname NOT LIKE 'version\_%')  -- other chains are none of its business
        UNION ALL
        SELECT format('GRANT %s (%I) ON %s TO %s', a.privilege_type, t.attname, c.oid::regclass, role)
        FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid CROSS JOIN aclexplode(t.attacl) a
        WHERE c.relnamespace = 'ferryman'::regnamespace AND a.grantee = model
        UNION ALL
        SELECT format('GRANT EXECUTE ON FUNCTION %s TO %s', p.oid::regprocedure, role)
        FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a
        WHERE p.pronamespace = 'ferryman'::regnamespace AND a.grantee = model
    LOOP
        EXECUTE statement;
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA ferryman TO %s', role);
END $$;

-- Binds a consumer, a machine or a described outbox to a role: only its members may read and change what goes by that name.
CREATE FUNCTION ferryman.bind(kind text, name text, role regrole) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM ferryman.grant_like(ferryman.usual_role(kind), role);
    INSERT INTO ferryman.bound_name AS b VALUES (kind, name, role::text)
    ON CONFLICT ON CONSTRAINT bound_name_pkey DO UPDATE SET role = excluded.role;
END $$;
