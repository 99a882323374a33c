"""The role that each process and command needs: docs/roles.md has the same table for people."""

from collections.abc import Iterable, Mapping

OWNER = "the owner of the database"
RELAY, CONSUMER, MONITOR = "ferryman_relay", "ferryman_consumer", "ferryman_monitor"
COURIER = "ferryman_courier"
LETTERS = "ferryman_dead_letter_operator"

RUN_RELAY, RUN_CONSUMER, RUN_COURIER = "run relay", "run module:consumer", "run NAME"

# Commands by what a person writes, with an option where it needs another role than the command without it.
NEEDED: Mapping[str, str] = {
    "migrate": OWNER,
    RUN_RELAY: RELAY,
    RUN_CONSUMER: CONSUMER,
    RUN_COURIER: COURIER,
    "drain": RELAY,
    "outbox stats": MONITOR,
    "outbox list": MONITOR,
    "outbox show": MONITOR,
    "outbox show --payload": RELAY,
    "outbox replay": RELAY,
    "outbox discard": RELAY,
    "outbox rebase": OWNER,
    "outbox rebase --new-cluster": RELAY,
    "inbox stats": MONITOR,
    "inbox list": MONITOR,
    "inbox show": MONITOR,
    "inbox show --payload": CONSUMER,
    "inbox requeue": CONSUMER,
    "inbox discard": CONSUMER,
    "inbox rebase": CONSUMER,
    "pause": RELAY,
    "pause --consumer": CONSUMER,
    "resume": RELAY,
    "resume --consumer": CONSUMER,
    "dead-letters list": LETTERS,
    "dead-letters show": LETTERS,
    "dead-letters requeue": LETTERS,
    "dead-letters discard": LETTERS,
    "saga move": CONSUMER,
    "trace": MONITOR,
    "audit": MONITOR,
    "reconcile": MONITOR,
}


def needed(command: str, options: Iterable[str] = ()) -> str | None:
    """Return the role that a command needs with these options, or None if it is not one of ours."""
    return next((NEEDED[key] for option in options if (key := f"{command} {option}") in NEEDED), NEEDED.get(command))


def remedy(login: str, role: str, *, has: bool) -> str:
    """Return what to do about a privilege that a login lacks although its process needs it."""
    if role == OWNER:
        return f"this needs {role}, with CREATEROLE or with roles that exist; the login is {login} (docs/roles.md)"
    if has:
        return (
            f"{login} has the role {role}: if the role has lost this, `ferryman migrate` as the owner grants it again; "
            "rights on tables of your own are yours to grant"
        )
    return f"GRANT {role} TO {login}: that role is needed here (docs/roles.md)"
