-- The roles of Ferryman's processes, each with the least privileges that it needs.
--
-- They are group roles without a login: grant one to the user that a process connects as. Later revisions, and the chains of
-- services, grant privileges on their own tables. The migrating user needs CREATEROLE, or an administrator creates the roles
-- beforehand.
CREATE FUNCTION ferryman.need_role(creation text, purpose text) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role CONSTANT text := split_part(creation, ' ', 3);
BEGIN
    BEGIN
        -- Roles belong to the whole cluster: the migration of another database may create them at this moment.
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE creation;
            EXECUTE format('COMMENT ON ROLE %I IS %L', role, 'Ferryman: ' || purpose);
        END IF;
    EXCEPTION
        WHEN duplicate_object OR unique_violation THEN
            NULL;
        WHEN insufficient_privilege THEN
            RAISE insufficient_privilege USING MESSAGE =
                format('role %s is missing and this user may not create it: as an administrator, %s', role, creation);
    END;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), role);
    EXECUTE format('GRANT USAGE ON SCHEMA ferryman TO %I', role);
    EXECUTE format('GRANT SELECT ON ferryman.version_engine TO %I', role);
END $$;
SELECT ferryman.need_role('CREATE ROLE ferryman_writer NOLOGIN', 'appends to the outbox inside its own transactions');
SELECT ferryman.need_role('CREATE ROLE ferryman_relay NOLOGIN', 'reads the outbox and records what was published');
SELECT ferryman.need_role('CREATE ROLE ferryman_consumer NOLOGIN', 'writes the inbox and appends results');
SELECT ferryman.need_role('CREATE ROLE ferryman_courier NOLOGIN', 'records attempts to deliver rows by a channel');
SELECT ferryman.need_role('CREATE ROLE ferryman_monitor NOLOGIN', 'reads the views, and no payload; changes nothing');
