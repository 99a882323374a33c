-- Appending: every check is made in the writer's transaction, so that a bad message fails its writer.

CREATE TABLE ferryman.outbox_key (
    type            text NOT NULL,
    idempotency_key text NOT NULL CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    id              uuid NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (type, idempotency_key)
);
-- Keys are deleted oldest first. New ones go to the right end of the index, so that an append pays little for it.
CREATE INDEX outbox_key_by_age ON ferryman.outbox_key (created_at);

-- Return what is wrong with headers; NULL if nothing is.
CREATE FUNCTION ferryman.outbox_headers_fault(headers jsonb) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ours CONSTANT text[] := '{ce_id,ce_type,ce_source,ce_specversion,ce_time,content-type}';
BEGIN
    RETURN CASE
        WHEN jsonb_typeof(headers) <> 'object' THEN 'its headers are not an object'
        WHEN pg_column_size(headers) > 30000 THEN 'its headers have more than 30000 bytes'
        ELSE (
            SELECT CASE
                WHEN h.key = ANY (ours) THEN 'the relay sets this header itself: ' || h.key
                ELSE 'this header is not text: ' || h.key
            END
            FROM jsonb_each(headers) h WHERE h.key = ANY (ours) OR jsonb_typeof(h.value) <> 'string' LIMIT 1
        )
    END;
END $$;

-- Return what is wrong with an entry, in words for its writer; NULL if nothing is. A single expression, so that
-- PostgreSQL inlines it; and no regular expression, which took longer than everything else here together.
CREATE FUNCTION ferryman.outbox_fault(
    topic text, key text, type text, bytes integer, headers jsonb, content_type text, max_bytes integer
) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE
        WHEN topic IS NULL THEN 'it has no topic'
        WHEN octet_length(topic) NOT BETWEEN 1 AND 249 OR topic IN ('.', '..') OR
             translate(topic, 'abcdefghijklmnopqrstuvwxyz.-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ', '') <> '' THEN
            'Kafka refuses its topic: a name has 1 to 249 letters, digits, dots, underscores or hyphens'
        WHEN key IS NULL THEN 'it has no key'
        WHEN octet_length(key) > 2000 THEN 'its key has ' || octet_length(key) || ' bytes, and 2000 is the most'
        WHEN type IS NULL OR length(type) NOT BETWEEN 1 AND 255 THEN 'its type must have 1 to 255 characters'
        WHEN bytes IS NULL THEN 'it has no payload'
        WHEN bytes > max_bytes THEN
            'its payload has ' || bytes || ' bytes, and ' || max_bytes || ' is the most (outbox_state.max_payload_bytes)'
        WHEN length(content_type) > 255 THEN 'its content type has more than 255 characters'
        WHEN headers <> '{}' THEN ferryman.outbox_headers_fault(headers)
    END;
END;

-- Fail the writer with the fault. STRICT: without a fault it is not even called.
CREATE FUNCTION ferryman.outbox_refuse(fault text, number bigint DEFAULT 1, many bigint DEFAULT 1)
    RETURNS boolean LANGUAGE plpgsql STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE invalid_parameter_value USING MESSAGE = 'the message cannot be appended: ' || fault ||
        CASE WHEN many > 1 THEN format(' (message %s of %s)', number, many) ELSE '' END;
END $$;

-- Append one entry and return its id; with an idempotency key that the type has used before, return the first id.
-- It and the next run with their owner's rights: writers may not give a lane, a segment or a time themselves, read keys,
-- or take one without an entry.
-- `s.one` tells the planner that the state is one row: without it, the planner may prefer a new plan for each call.
CREATE FUNCTION ferryman.outbox_append(
    topic text, key text, type text, payload bytea, headers jsonb DEFAULT '{}', id uuid DEFAULT NULL,
    idempotency_key text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    entry uuid := coalesce(id, gen_random_uuid());
    known uuid;
BEGIN
    IF idempotency_key IS NOT NULL THEN
        PERFORM ferryman.outbox_refuse(
            ferryman.outbox_fault(topic, key, type, octet_length(payload), headers, content_type, s.max_payload_bytes)
        ) FROM ferryman.outbox_state s WHERE s.one;
        LOOP
            INSERT INTO ferryman.outbox_key (type, idempotency_key, id) VALUES (type, idempotency_key, entry)
            ON CONFLICT ON CONSTRAINT outbox_key_pkey DO NOTHING;
            EXIT WHEN FOUND;
            SELECT k.id INTO known FROM ferryman.outbox_key k WHERE k.type = type AND k.idempotency_key = idempotency_key;
            IF FOUND THEN
                RETURN known;
            END IF;  -- it was forgotten since
        END LOOP;
    END IF;
    INSERT INTO ferryman.outbox (segment, lane, id, topic, key, type, payload, headers, content_type)
    SELECT s.segment, ferryman.outbox_lane(key), entry, topic, key, type, payload, coalesce(headers, '{}'), content_type
    FROM ferryman.outbox_state s
    WHERE s.one AND ferryman.outbox_refuse(
        ferryman.outbox_fault(topic, key, type, octet_length(payload), headers, content_type, s.max_payload_bytes)
    ) IS NULL;
    IF NOT FOUND THEN
        RAISE 'nothing was appended: ferryman.outbox_state has lost its row';
    END IF;
    RETURN entry;
END $$;

-- Append JSON. A text literal for bytea would be read by the rules of bytea, which change every backslash of the JSON.
CREATE FUNCTION ferryman.outbox_append_json(
    topic text, key text, type text, data jsonb, headers jsonb DEFAULT '{}', id uuid DEFAULT NULL,
    idempotency_key text DEFAULT NULL
) RETURNS uuid LANGUAGE sql
BEGIN ATOMIC
    SELECT ferryman.outbox_append(
        topic, key, type, convert_to(data::text, 'UTF8'), headers, id, idempotency_key, 'application/json');
END;

-- Append many entries at once, in the order of the arrays, and return their ids in that order. An array that is NULL,
-- or that ends early, counts as filled up with NULLs.
CREATE FUNCTION ferryman.outbox_append_many(
    topics text[], keys text[], types text[], payloads bytea[], headers jsonb[] DEFAULT NULL, ids uuid[] DEFAULT NULL,
    idempotency_keys text[] DEFAULT NULL, content_types text[] DEFAULT NULL
) RETURNS uuid[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    many CONSTANT bigint := coalesce(cardinality(keys), 0);
    known uuid[] := ARRAY(
        SELECT coalesce(m.id, gen_random_uuid()) FROM unnest(keys, ids) WITH ORDINALITY m (key, id, n) ORDER BY m.n
    );
    entries CONSTANT uuid[] := known;
    again boolean[] := ARRAY(SELECT k IS NOT NULL FROM unnest(idempotency_keys) WITH ORDINALITY m (k, n) ORDER BY m.n);
    state ferryman.outbox_state;
BEGIN
    SELECT * INTO STRICT state FROM ferryman.outbox_state;
    IF true = ANY (again) THEN
        PERFORM ferryman.outbox_refuse(
            ferryman.outbox_fault(
                m.topic, m.key, m.type, octet_length(m.payload), m.headers, m.content_type, state.max_payload_bytes
            ), m.n, many
        ) FROM unnest(topics, keys, types, payloads, headers, content_types) WITH ORDINALITY
               m (topic, key, type, payload, headers, content_type, n);
        LOOP
            -- Sorted, so that two writers with the same keys wait for one another and do not deadlock.
            WITH first AS (
                SELECT DISTINCT ON (m.type, m.idempotency_key) m.type, m.idempotency_key, m.id, m.n
                FROM unnest(types, idempotency_keys, entries, again) WITH ORDINALITY
                     m (type, idempotency_key, id, again, n)
                WHERE m.again ORDER BY m.type, m.idempotency_key, m.n
            ), added AS (
                INSERT INTO ferryman.outbox_key (type, idempotency_key, id)
                SELECT f.type, f.idempotency_key, f.id FROM first f ORDER BY f.type, f.idempotency_key
                ON CONFLICT ON CONSTRAINT outbox_key_pkey DO NOTHING RETURNING type, idempotency_key
            ), appended AS (
                SELECT f.n FROM first f JOIN added USING (type, idempotency_key)
            )
            SELECT array_agg(m.again AND a.n IS NULL ORDER BY m.n) INTO again
            FROM unnest(again) WITH ORDINALITY m (again, n) LEFT JOIN appended a ON a.n = m.n;
            -- A statement of its own, to see what the writers that it waited for have committed.
            known := ARRAY(
                SELECT coalesce(k.id, CASE WHEN m.again IS NOT TRUE THEN m.id END)
                FROM unnest(types, idempotency_keys, entries, again) WITH ORDINALITY
                     m (type, idempotency_key, id, again, n)
                LEFT JOIN ferryman.outbox_key k ON k.type = m.type AND k.idempotency_key = m.idempotency_key
                ORDER BY m.n
            );
            -- Else a key was forgotten since.
            EXIT WHEN NOT EXISTS (SELECT FROM unnest(known, again) m (id, again) WHERE m.id IS NULL AND m.again);
        END LOOP;
    END IF;
    INSERT INTO ferryman.outbox (segment, lane, id, topic, key, type, payload, headers, content_type)
    SELECT state.segment, ferryman.outbox_lane(m.key), m.id, m.topic, m.key, m.type, m.payload,
           coalesce(m.headers, '{}'), m.content_type
    FROM unnest(topics, keys, types, payloads, headers, entries, content_types, again) WITH ORDINALITY
         m (topic, key, type, payload, headers, id, content_type, again, n)
    WHERE m.again IS NOT TRUE AND ferryman.outbox_refuse(
        ferryman.outbox_fault(
            m.topic, m.key, m.type, octet_length(m.payload), m.headers, m.content_type, state.max_payload_bytes
        ), m.n, many
    ) IS NULL ORDER BY m.n;
    RETURN known;
END $$;

-- Entries that come another way (INSERT, COPY) have no lane yet: they are checked too, and get theirs here. A lane that
-- nobody reads counts as none; a CHECK would refuse it too, but is compiled anew for every statement.
CREATE FUNCTION ferryman.outbox_guard() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM ferryman.outbox_refuse(
        ferryman.outbox_fault(
            NEW.topic, NEW.key, NEW.type, octet_length(NEW.payload), NEW.headers, NEW.content_type, s.max_payload_bytes
        )
    ) FROM ferryman.outbox_state s WHERE s.one;
    PERFORM ferryman.outbox_refuse('its created_at is before 1970, or over a day ahead of the server''s clock')
    WHERE NEW.created_at NOT BETWEEN '1970-01-01Z' AND clock_timestamp() + interval '1 day';
    NEW.lane := ferryman.outbox_lane(NEW.key);
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE INSERT ON ferryman.outbox FOR EACH ROW
    WHEN (NEW.lane IS NULL OR NEW.lane NOT BETWEEN 0 AND 7)
    EXECUTE FUNCTION ferryman.outbox_guard();

-- Least privilege. Writers may use the functions, INSERT and COPY. They may not give a lane, segment or time, which would
-- pass the guard, and may not set xid and position.
GRANT INSERT (id, topic, key, type, payload, headers, content_type)
    ON ferryman.outbox TO ferryman_writer, ferryman_consumer;
REVOKE EXECUTE ON FUNCTION ferryman.outbox_append, ferryman.outbox_append_json, ferryman.outbox_append_many FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ferryman.outbox_append, ferryman.outbox_append_json, ferryman.outbox_append_many
    TO ferryman_writer, ferryman_consumer;
GRANT SELECT, DELETE ON ferryman.outbox_key TO ferryman_relay;
