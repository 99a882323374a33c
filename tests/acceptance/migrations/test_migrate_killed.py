"""N11: after a migration was killed at any moment, the next one brings the database to the newest level."""

import random
import time

import psycopg
import pytest

from ferryman.migrations import chains
from ferryman.testing import stack
from support.launch import Launcher


def kill_and_migrate_again(ferryman: Launcher, server: str, dice: random.Random, rounds: int) -> int:
    """Return in how many rounds the kill came before the migration was done."""
    unfinished, seconds = 0, 0.3  # about what one takes; each round learns it anew
    for number in range(rounds):
        name = f"ferryman_killed_{number}"
        url = stack.new_database(server, name)
        try:
            victim = ferryman.start("migrate", env={"FERRYMAN_DATABASE_URL": url})
            time.sleep(dice.uniform(0, 1.5 * seconds))
            victim.kill()
            with psycopg.connect(url) as connection:
                levels = set(chains.level(connection, [chains.ENGINE]).values())
            assert levels <= {None, chains.head(chains.ENGINE)}
            was_unfinished = None in levels
            unfinished += was_unfinished
            began = time.monotonic()
            again = ferryman.run("migrate", "--json", env={"FERRYMAN_DATABASE_URL": url})
            seconds = time.monotonic() - began if was_unfinished else seconds
            assert again.wait() == 0
            assert again.json["chains"][0]["to"] == chains.head(chains.ENGINE)
        finally:
            stack.drop_database(server, name)
    return unfinished


def test_a_migration_killed_at_any_moment_leaves_nothing_half_done(
    ferryman: Launcher, ferryman_postgres: str, seed: int
) -> None:
    kill_and_migrate_again(ferryman, ferryman_postgres, random.Random(seed), rounds=4)


@pytest.mark.prove
def test_forty_migrations_killed_at_any_moment_leave_nothing_half_done(
    ferryman: Launcher, ferryman_postgres: str, seed: int
) -> None:
    """Slow, because it must hit many moments inside the migration."""
    unfinished = kill_and_migrate_again(ferryman, ferryman_postgres, random.Random(seed), rounds=40)
    assert 0 < unfinished < 40
