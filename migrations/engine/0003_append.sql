-- Appending: every check is made in the writer's transaction, so that what is wrong fails its writer.

CREATE TABLE ferryman.outbox_key (
    type            text NOT NULL,
    idempotency_key text NOT NULL CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    id              uuid NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (type, idempotency_key)
);

-- Says what is wrong with an entry, in the words of its writer.
CREATE FUNCTION ferryman.outbox_check(
    topic text, key text, type text, bytes integer, headers jsonb, max_bytes integer
) RETURNS void LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    ours CONSTANT text[] := '{ce_id,ce_type,ce_source,ce_specversion,ce_time,content-type}';
    wrong text := CASE
        WHEN topic IS NULL THEN 'it has no topic'
        WHEN topic !~ '^[a-zA-Z0-9._-]{1,249}$' OR topic IN ('.', '..') THEN
            'Kafka refuses its topic: a name has 1 to 249 letters, digits, dots, underscores or hyphens'
        WHEN key IS NULL THEN 'it has no key'
        WHEN octet_length(key) > 2000 THEN 'its key has ' || octet_length(key) || ' bytes, and 2000 is the most'
        WHEN type IS NULL OR length(type) NOT BETWEEN 1 AND 255 THEN 'its type must have 1 to 255 characters'
        WHEN bytes IS NULL THEN 'it has no payload'
        WHEN bytes > max_bytes THEN
            'its payload has ' || bytes || ' bytes, and ' || max_bytes || ' is the most (outbox_state.max_payload_bytes)'
    END;
BEGIN
    IF wrong IS NULL AND headers <> '{}' THEN
        wrong := CASE
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
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the message cannot be appended: ' || wrong;
    END IF;
END $$;

-- Appends one entry and returns its id; with an idempotency key that its type has used, the id of the first.
CREATE FUNCTION ferryman.outbox_append(
    topic text, key text, type text, payload bytea, headers jsonb DEFAULT '{}', id uuid DEFAULT NULL,
    idempotency_key text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    entry uuid := coalesce(id, gen_random_uuid());
    current_segment smallint;
    max_bytes integer;
BEGIN
    SELECT s.segment, s.max_payload_bytes INTO current_segment, max_bytes FROM ferryman.outbox_state s;
    PERFORM ferryman.outbox_check(topic, key, type, octet_length(payload), headers, max_bytes);
    IF idempotency_key IS NOT NULL THEN
        INSERT INTO ferryman.outbox_key (type, idempotency_key, id) VALUES (type, idempotency_key, entry)
        ON CONFLICT ON CONSTRAINT outbox_key_pkey DO NOTHING;
        IF NOT FOUND THEN
            RETURN (SELECT k.id FROM ferryman.outbox_key k WHERE k.type = type AND k.idempotency_key = idempotency_key);
        END IF;
    END IF;
    INSERT INTO ferryman.outbox (segment, lane, id, topic, key, type, payload, headers, content_type)
    VALUES (current_segment, ferryman.outbox_lane(key), entry, topic, key, type, payload, coalesce(headers, '{}'),
            content_type);
    RETURN entry;
END $$;

-- The same for many entries at once, in the order of the arrays; returns their ids in that order.
CREATE FUNCTION ferryman.outbox_append_many(
    topics text[], keys text[], types text[], payloads bytea[], headers jsonb[], ids uuid[],
    idempotency_keys text[], content_types text[]
) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    entries uuid[] := (SELECT array_agg(coalesce(u.id, gen_random_uuid()) ORDER BY u.n)
                       FROM unnest(ids) WITH ORDINALITY u (id, n));
    known uuid[] := entries;
    state ferryman.outbox_state;
BEGIN
    SELECT * INTO state FROM ferryman.outbox_state;
    PERFORM ferryman.outbox_check(m.topic, m.key, m.type, octet_length(m.payload), m.headers, state.max_payload_bytes)
    FROM unnest(topics, keys, types, payloads, headers) m (topic, key, type, payload, headers);
    IF EXISTS (SELECT FROM unnest(idempotency_keys) k WHERE k IS NOT NULL) THEN
        -- Sorted, so that two writers who use the same keys wait for one another and do not deadlock.
        INSERT INTO ferryman.outbox_key (type, idempotency_key, id)
        SELECT m.type, m.idempotency_key, m.id
        FROM unnest(types, idempotency_keys, entries) WITH ORDINALITY m (type, idempotency_key, id, n)
        WHERE m.idempotency_key IS NOT NULL ORDER BY m.type, m.idempotency_key, m.n
        ON CONFLICT ON CONSTRAINT outbox_key_pkey DO NOTHING;
        known := (
            SELECT array_agg(coalesce(k.id, m.id) ORDER BY m.n)
            FROM unnest(types, idempotency_keys, entries) WITH ORDINALITY m (type, idempotency_key, id, n)
            LEFT JOIN ferryman.outbox_key k ON k.type = m.type AND k.idempotency_key = m.idempotency_key
        );
    END IF;
    INSERT INTO ferryman.outbox (segment, lane, id, topic, key, type, payload, headers, content_type)
    SELECT state.segment, ferryman.outbox_lane(m.key), m.id, m.topic, m.key, m.type, m.payload,
           coalesce(m.headers, '{}'), m.content_type
    FROM unnest(topics, keys, types, payloads, headers, entries, known, content_types) WITH ORDINALITY
         m (topic, key, type, payload, headers, id, known, content_type, n)
    WHERE m.id = m.known ORDER BY m.n;
    RETURN QUERY SELECT u.id FROM unnest(known) WITH ORDINALITY u (id, n) ORDER BY u.n;
END $$;

-- Entries that come another way (INSERT, COPY) have no lane yet: they are checked too, and get theirs here.
CREATE FUNCTION ferryman.outbox_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ferryman.outbox_check(NEW.topic, NEW.key, NEW.type, octet_length(NEW.payload), NEW.headers,
                                  (SELECT max_payload_bytes FROM ferryman.outbox_state));
    NEW.lane := ferryman.outbox_lane(NEW.key);
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE INSERT ON ferryman.outbox FOR EACH ROW WHEN (NEW.lane IS NULL)
    EXECUTE FUNCTION ferryman.outbox_guard();

-- Least privilege. Writers may use the functions, INSERT and COPY; xid and position are not theirs to set.
GRANT INSERT (segment, lane, id, created_at, topic, key, type, payload, headers, content_type)
    ON ferryman.outbox TO ferryman_writer, ferryman_consumer;
GRANT SELECT, INSERT ON ferryman.outbox_key TO ferryman_writer, ferryman_consumer;
GRANT SELECT, DELETE ON ferryman.outbox_key TO ferryman_relay;
GRANT SELECT ON ferryman.outbox_key TO ferryman_monitor;
