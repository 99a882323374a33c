"""Databases of tests are created ahead of them, and dropped behind them."""

import secrets
from contextlib import closing

import psycopg

from ferryman.testing import stack
from ferryman.testing.shared import SpareDatabases
from support.published import poll_until


def test_each_test_gets_a_database_of_its_own_and_none_is_left(ferryman_postgres: str) -> None:
    template = f"ferryman_spare_{secrets.token_hex(4)}"
    with stack.temporary_database(ferryman_postgres, template) as url:
        with psycopg.connect(url) as db:
            db.execute("CREATE TABLE copied ()")
        with (
            closing(SpareDatabases(ferryman_postgres, template)) as spare,
            psycopg.connect(ferryman_postgres) as server,
        ):
            lent = [spare.lend() for _ in range(3)]
            assert len(set(lent)) == 3
            for each in lent:
                with psycopg.connect(each) as db:
                    db.execute("SELECT FROM copied")
            names = [stack.name_of(each) for each in (*lent, *(made.result() for made in spare._spare))]
            assert len(names) == 6
            open_still = psycopg.connect(lent[0])  # as a test may leave it

            def left(count: int) -> bool:
                query = "SELECT count(*) FROM pg_database WHERE datname = ANY(%s)"
                return server.execute(query, [names]).fetchone() == (count,)

            assert left(6)
            spare.take_back(lent[0])
            poll_until(lambda: left(5), "end of the database that came back")
            open_still.close()
            for each in lent[1:]:
                spare.take_back(each)
            spare.close()
            assert left(0)
