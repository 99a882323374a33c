"""The rights that the migrations give to roles, compared with those that the roles have in a database.

A dump restored without its grants (`pg_restore -x`), or before its roles existed, has every table and lacks the rights.
Each right is stated once, in the migration of its table. What is missing is granted again by every `ferryman migrate`;
what an administrator granted besides stays.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import Connection

_SCHEMA = "ferryman"
_PUBLIC = ""
_USUAL = {"consumer": "ferryman_consumer", "machine": "ferryman_consumer", "outbox": "ferryman_courier"}
"""The role that has the names which are not bound, by kind: that of a bound name is granted the same."""
_GUARDED = ("own", "unbound", "read")
"""The policies that `ferryman.guard_by_name` creates."""

_ENDING = r".*?;$"
_STATEMENT = re.compile(
    rf"^(?:GRANT |REVOKE |CREATE POLICY |SELECT ferryman\.(?:need_role|grant_like|guard_by_name)\(){_ENDING}",
    re.MULTILINE | re.DOTALL,
)
_GRANT = re.compile(r"(GRANT|REVOKE) (.+?) ON (?:(FUNCTION|SCHEMA|SEQUENCE) )?(.+?) (?:TO|FROM) (.+);")
_PRIVILEGE = re.compile(r"(\w+)(?: \(([^)]*)\))?")
_LITERAL = re.compile(r"'([^']*)'")
_POLICY = re.compile(r"CREATE POLICY (\w+) ON (\S+)")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")

# Objects without any grant too: each with an empty privilege.
_PRESENT = """\
-- rights.present
SELECT coalesce(r.rolname, ''), coalesce(a.privilege_type, ''), o.kind, o.name, o.part
FROM (
    SELECT 'SCHEMA', n.nspname::text, '', n.nspacl FROM pg_namespace n WHERE n.nspname = ANY (%(schemas)s)
    UNION ALL
    SELECT 'FUNCTION', format('%%s.%%s', n.nspname, p.proname), '', coalesce(p.proacl, acldefault('f', p.proowner))
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = ANY (%(schemas)s)
    UNION ALL
    SELECT '', format('%%s.%%s', n.nspname, c.relname), '', c.relacl
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ANY (%(schemas)s)
    UNION ALL
    SELECT '', format('%%s.%%s', n.nspname, c.relname), t.attname::text, t.attacl
    FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ANY (%(schemas)s) AND t.attnum > 0 AND NOT t.attisdropped
) o (kind, name, part, acl)
LEFT JOIN LATERAL aclexplode(o.acl) a ON true
LEFT JOIN pg_roles r ON r.oid = a.grantee
"""

_POLICIES = """\
-- rights.policies
SELECT p.polname::text, format('%%s.%%s', n.nspname, c.relname)
FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s)
"""

# The owner of the tables is subject to none of it.
_ROLE_OF = """\
-- rights.role_of
SELECT current_user::text, b.role, pg_has_role(to_regrole(b.role), 'USAGE')
       OR (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = 'ferryman.inbox'::regclass)
FROM (SELECT) one LEFT JOIN ferryman.bound_name b ON (b.kind, b.name) = (%(kind)s, %(name)s)
"""

# Whoever may not read the names that are bound is told about the others.
_MAY_READ_BOUND = """\
-- rights.may_read_bound
SELECT coalesce(bool_or(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')), false)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'ferryman' AND c.relname = 'bound_name'
"""

_BOUND = """\
-- rights.bound
SELECT b.kind, b.name, b.role, (SELECT r.rolname::text FROM pg_roles r WHERE r.oid = to_regrole(b.role))
FROM ferryman.bound_name b ORDER BY 1, 2
"""


class Right(NamedTuple):
    """One privilege of a role, or of PUBLIC, on an object or on a column of it."""

    role: str
    privilege: str
    kind: str
    name: str
    part: str = ""

    @property
    def place(self) -> "Right":
        """The object or column alone, as it is listed whoever has rights on it."""
        return self._replace(role=_PUBLIC, privilege="")

    def among(self, present: set["Right"]) -> bool:
        """Return True if the role has this right. One on a table is one on all its columns."""
        return self in present or self._replace(part="") in present


@dataclass(slots=True)
class Stated:
    """The rights that migrations state, in the order in which they do."""

    granted: dict[Right, None] = field(default_factory=dict)
    revoked: dict[Right, None] = field(default_factory=dict)
    """Rights that PUBLIC has by default, and must not have."""
    roles: dict[str, str] = field(default_factory=dict)
    """Each role with the statement that creates it and lets it connect."""
    policies: list[tuple[set[tuple[str, str]], str]] = field(default_factory=list)
    """Each statement that creates policies, with their names and tables."""

    def read(self, text: str, engine: "Stated") -> None:
        """Add what a file of migrations states. Roles may be given what roles of the engine have."""
        for found in _STATEMENT.finditer(text):
            statement = " ".join(found[0].split())
            if parts := _GRANT.fullmatch(statement):
                self._grant(*parts.groups())
            elif policy := _POLICY.match(statement):
                self.policies.append(({(policy[1], policy[2])}, statement))
            else:
                self._call(statement, engine)

    def _grant(self, verb: str, privileges: str, kind: str | None, names: str, roles: str) -> None:
        for role in roles.split(", "):
            for name in names.split(", "):
                for privilege, columns in _PRIVILEGE.findall(privileges):
                    for column in columns.split(", "):
                        what = (privilege, "" if kind in (None, "SEQUENCE") else kind, name, column.strip('"'))
                        if verb == "GRANT":
                            self.granted[Right(role, *what)] = None
                        elif role == "PUBLIC":
                            self.revoked[Right(_PUBLIC, *what)] = None
                        else:
                            self.granted.pop(Right(role, *what), None)

    def _call(self, statement: str, engine: "Stated") -> None:
        first, second = _LITERAL.findall(statement)[:2]
        if "need_role" in statement:
            role = first.split()[2]
            self.roles[role] = statement
            self.granted[_usage(role)] = self.granted[Right(role, "SELECT", "", "ferryman.version_engine")] = None
        elif "grant_like" in statement:
            self.granted |= dict.fromkeys(engine.like(first, second))
        else:
            self.policies.append(({(policy, f"{_SCHEMA}.{first}") for policy in _GUARDED}, statement))

    def like(self, model: str, role: str) -> Iterator[Right]:
        """Yield for a role what another one is granted."""
        yield _usage(role)
        yield from (each._replace(role=role) for each in self.granted if each.role == model)


def missing(connection: Connection, files: Mapping[str, Iterable[str]], engine: str) -> list[str]:
    """Return the statements that give the roles what they lack of what these files of migrations state.

    `files` has the texts of each chain that the database has, the engine's first.
    """
    chains = {engine: Stated()}
    for owner, texts in files.items():
        for text in texts:
            chains.setdefault(owner, Stated()).read(text, chains[engine])
    wanted = {right: None for stated in chains.values() for right in stated.granted}
    for kind, *_, role in bound(connection):
        wanted |= dict.fromkeys(chains[engine].like(_USUAL[kind], role) if role else ())
    schemas = {"schemas": sorted({right.name.partition(".")[0] for right in wanted})}
    present = {Right(*row) for row in connection.execute(_PRESENT, schemas).fetchall()}
    places = {right.place for right in present}
    lacking = [right for right in wanted if right.place in places and not right.among(present)]
    new = {role: call for each in chains.values() for role, call in each.roles.items() if _usage(role) in lacking}
    revoked = [right for each in chains.values() for right in each.revoked if right in present]
    policies = set(connection.execute(_POLICIES, schemas).fetchall())
    return [
        *new.values(),
        *(f"REVOKE {right.privilege} ON {right.kind} {right.name} FROM PUBLIC;" for right in revoked),
        *_grants(right for right in lacking if right != _usage(right.role) or right.role not in new),
        *(call for each in chains.values() for names, call in each.policies if not names <= policies),
    ]


def check_name(connection: Connection, kind: str, name: str) -> None:
    """Refuse a login that is no member of the role that a consumer, a machine or a described outbox is bound to.

    Errors on this connection name that role from now on, or that of all consumers, where a privilege is missing.
    """
    login, role, may = postgres.row(connection.execute(_ROLE_OF, {"kind": kind, "name": name}))
    if role and not may:
        raise Misconfigured(
            f"the {kind} {name} is bound to the role {role}, and this login is {login}",
            remedy=f"GRANT {role} TO {login}, or connect with a login that has it (docs/roles.md)",
        )
    if role or kind != "outbox":  # those of a described outbox name the role that delivers it
        postgres.expect(connection, role or _USUAL[kind])


def bound(connection: Connection) -> list[tuple[str, str, str, str | None]]:
    """Return each name that is bound: its kind, the name, the role as it was given, and the role if it exists."""
    readable = connection.execute(_MAY_READ_BOUND).fetchone()
    return connection.execute(_BOUND).fetchall() if readable and readable[0] else []


def _usage(role: str) -> Right:
    return Right(role, "USAGE", "SCHEMA", _SCHEMA)


def _grants(rights: Iterable[Right]) -> Iterator[str]:
    """Yield a statement for each object and role."""
    for (role, kind, name), group in groupby(sorted(rights, key=_target), _target):
        columns: dict[str, list[str]] = {}
        for right in group:
            columns.setdefault(right.privilege, []).extend([_quoted(right.part)] if right.part else [])
        privileges = (f"{each} ({', '.join(parts)})" if parts else each for each, parts in columns.items())
        yield f"GRANT {', '.join(privileges)} ON {f'{kind} ' if kind else ''}{name} TO {_quoted(role)};"


def _target(right: Right) -> tuple[str, str, str]:
    return right.role, right.kind, right.name


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name != "offset" else '"' + name.replace('"', '""') + '"'
