"""The functions of the migrations mean the same whoever calls them, and whatever else is in the database."""

from typing import Any

import psycopg

from ferryman.migrations import chains
from ferryman.testing import stack

Database = psycopg.Connection[tuple[Any, ...]]

# A body in SQL's own syntax (BEGIN ATOMIC) was parsed when the function was created. Any other is parsed under a
# search_path: without pg_temp in it, the caller's temporary tables come first.
_UNFIXED = """
SELECT p.oid::regprocedure::text FROM pg_proc p
WHERE p.pronamespace::regnamespace::text = ANY (%s) AND p.prosqlbody IS NULL
  AND NOT coalesce(p.proconfig, '{}') @> '{"search_path=pg_catalog, pg_temp"}'
ORDER BY 1
"""
_PARSED_WITH = "SELECT count(*) FROM pg_depend WHERE refobjid = 'public.pg_has_role(text, text)'::regprocedure"


def test_no_function_is_parsed_under_its_callers_search_path(ferryman_db: Database) -> None:
    """N5: a caller's functions and temporary tables must not stand for those that a function names."""
    schemas = ["ferryman" if owner == chains.ENGINE else owner for owner in chains.owners()]
    assert ferryman_db.execute(_UNFIXED, (schemas,)).fetchall() == []


def test_migrations_use_no_function_that_fits_better_in_public(ferryman_postgres: str) -> None:
    """N5: PostgreSQL compares a call with functions of all schemas, and takes the one whose types fit best."""
    with stack.temporary_database(ferryman_postgres, "planted_public") as url, psycopg.connect(url) as db:
        db.execute("CREATE FUNCTION public.pg_has_role(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
        db.commit()
        stack.migrate(url)
        assert db.execute(_PARSED_WITH).fetchall() == [(0,)]
