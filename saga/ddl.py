"""What a machine's table refuses, as SQL: it stands in the service's migration, and a test keeps it the machine's own.

Guards are conditions of triggers: what is allowed costs an expression and no function call.
"""

from collections.abc import Iterable

from ferryman.saga.machine import Machine

BEGIN, END = "-- the machine {}: begin", "-- the machine {}: end"

_GUARDS = """\
ALTER TABLE {table} ADD CONSTRAINT {name}_states CHECK ({state} IN ({states}));
ALTER TABLE {table} ADD CONSTRAINT {name}_waits CHECK (({due_at} IS NULL) = ({state} IN ({terminals})));
CREATE TRIGGER {name}_begins BEFORE INSERT ON {table} FOR EACH ROW
    WHEN (NEW.{state} <> '{initial}')
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE TRIGGER {name}_ended BEFORE UPDATE ON {table} FOR EACH ROW
    WHEN (OLD.{state} IN ({terminals}))
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE TRIGGER {name}_goes BEFORE UPDATE ON {table} FOR EACH ROW
    WHEN (OLD.{key} <> NEW.{key} OR (OLD.{state} <> NEW.{state} AND (OLD.{state}, NEW.{state}) NOT IN (
{transitions}
    )))
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE TRIGGER {name}_stays BEFORE DELETE ON {table} FOR EACH ROW
    WHEN (OLD.{state} NOT IN ({terminals}) OR
          current_setting('ferryman.archiving', true) IS DISTINCT FROM '{name}')
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE TRIGGER {name}_all_stay BEFORE TRUNCATE ON {table} FOR EACH STATEMENT
    EXECUTE FUNCTION ferryman.saga_refuse('{name}', '{state}');
CREATE INDEX {name}_due ON {table} ({due_at}) WHERE {due_at} IS NOT NULL;

-- Gives out the rows that ended before that time, and removes them: for whoever keeps them elsewhere.
CREATE FUNCTION {schema}.{archive}(before timestamptz, who text, reason text, most integer DEFAULT 10000)
    RETURNS SETOF jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('ferryman.archiving', '{name}', true);
    RETURN QUERY WITH gone AS (
        DELETE FROM {table} WHERE {key} IN (
            SELECT {key} FROM {table} WHERE {state} IN ({terminals}) AND {changed_at} < before
            ORDER BY {changed_at} LIMIT most FOR UPDATE SKIP LOCKED
        ) RETURNING *
    ), audit AS (
        INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
        SELECT {archive}.who, 'archive', {archive}.reason, jsonb_build_object('machine', '{name}', 'before', before),
               count(*) FROM gone
    )
    SELECT to_jsonb(gone) FROM gone;
    PERFORM set_config('ferryman.archiving', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION {schema}.{archive} FROM PUBLIC;"""


def guards(machine: Machine) -> str:
    """The whole of it, between two lines by which it is found."""
    body = _GUARDS.format(
        name=machine.name,
        table=machine.table,
        schema=machine.schema,
        archive=machine.archive,
        state=machine.columns.state,
        due_at=machine.columns.due_at,
        changed_at=machine.columns.changed_at,
        key=machine.key,
        initial=machine.initial,
        states=_words(machine.states),
        terminals=_words(machine.terminals),
        transitions=",\n".join(f"        ('{old}', '{new}')" for old, new in machine.transitions),
    )
    return f"{BEGIN.format(machine.name)}\n{body}\n{END.format(machine.name)}"


def _words(states: Iterable[str]) -> str:
    return ", ".join(f"'{each}'" for each in states)
