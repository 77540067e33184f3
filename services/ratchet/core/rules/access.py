"""Who calls an HTTP API and what its key allows: the scopes, the form of a key, and what is stored of it.

    caller.require(KeyScope.INFER, "support")   # raises Forbidden, which names the scope that is missing

A key is 256 random bits, and what is stored of it is its plain sha256. A slow hash protects secrets that people choose,
because those can be guessed one after the other; 256 random bits cannot, and a slow hash would cost every call its
time. A key is looked up by its hash, so the time that a look-up takes says nothing about the key.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ratchet.core.contract.state import Key, KeyLimits
from ratchet.core.errors import BadRequest, Forbidden
from ratchet.core.rules.arms import ROLE


class KeyScope(StrEnum):
    """What a key allows, of a role (`view:support`), of every role that begins so (`view:acme-*`: a tenant), or of all
    of them (`infer:*`; `view` is `view:*`). `infer` and `feedback` name their role, `admin` has none."""

    INFER = "infer"
    """Call the role's policies through the gateway."""
    FEEDBACK = "feedback"
    """End and rate the role's trajectories."""
    TRAIN = "train"
    """Ask for training and cancel it; includes `view`."""
    OPERATE = "operate"
    """Steer rollouts, and ask versions that were refused, rolled back or replaced; includes `view`."""
    VIEW = "view"
    """Read jobs, policies, rollouts and the state of the system."""
    ANNOTATE = "annotate"
    """End and rate trajectories, also in a person's name; includes `view` and `feedback`."""
    ADMIN = "admin"
    """Create, list and revoke keys; includes every other scope."""


NAMING_ROLES = frozenset({KeyScope.INFER, KeyScope.FEEDBACK})
"""Scopes that are nothing without a role."""
EVERY_ROLE = "*"
_ROLES = re.compile(rf"\*|{ROLE.pattern}|[a-z0-9_-]{{0,62}}[_-]\*")
"""One role, or every role that begins so: a tenant's name ends with a hyphen, or `acme` would hold `acmecorp` too."""
AGENT_SCOPES = (f"{KeyScope.INFER}:{EVERY_ROLE}", f"{KeyScope.FEEDBACK}:{EVERY_ROLE}")
"""Everything that an agent does."""
SERVICE_SCOPES = (*AGENT_SCOPES, str(KeyScope.VIEW))
"""What Ratchet's services do among themselves."""
_WITH_ROLES = {*KeyScope} - {KeyScope.ADMIN}
_INCLUDED: Mapping[str, Set[KeyScope]] = {
    KeyScope.TRAIN: {KeyScope.VIEW},
    KeyScope.OPERATE: {KeyScope.VIEW},
    KeyScope.ANNOTATE: {KeyScope.VIEW, KeyScope.FEEDBACK},
}

PREFIX = "rtk_"
"""How a key begins, so that people and scanners for secrets recognise one."""
KEY_BYTES = 32
_ID = string.ascii_lowercase + string.digits
ID_LENGTH = 10
NO_LIMITS = KeyLimits()
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.@/-]{0,63}")
"""A name stands in logs, in the audit log and in front of other words there."""


@dataclass(frozen=True, slots=True)
class RoleSet:
    """Some roles: `role in roles`."""

    names: frozenset[str]
    """Roles, beginnings of roles (`acme-*`), or `*` for all of them."""

    def __contains__(self, role: str) -> bool:
        names = self.names
        return role in names or any(name[-1] == EVERY_ROLE and role.startswith(name[:-1]) for name in names)

    @property
    def is_every(self) -> bool:
        """Whether every role is in it."""
        return EVERY_ROLE in self.names

    @property
    def pattern(self) -> str | None:
        """A regular expression of the roles, for queries; None: every role."""
        alternatives = "|".join(re.escape(name).replace(r"\*", ".*") for name in sorted(self.names))
        return None if self.is_every else f"^({alternatives})$"


ALL_ROLES = RoleSet(frozenset({EVERY_ROLE}))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as the key says that it came with."""

    key_id: str | None
    """Public, short, and never given to another key; None without a key."""
    name: str
    scopes: frozenset[str]
    limits: KeyLimits = NO_LIMITS

    def allows(self, scope: KeyScope, role: str | None = None) -> bool:
        """Whether it may do this: for `role`; without one, for any role."""
        roles = self.roles(scope)
        return bool(roles.names) if role is None else role in roles

    def roles(self, scope: KeyScope) -> RoleSet:
        """The roles for which it may do this; of `admin`, all of them or none."""
        names: set[str] = set()
        for held in self.scopes:
            kind, _, role = held.partition(":")
            if kind in (scope, KeyScope.ADMIN) or scope in _INCLUDED.get(kind, ()):
                names.add(role or EVERY_ROLE)
        return RoleSet(frozenset(names))

    def require(self, scope: KeyScope, role: str | None = None) -> None:
        """Raises `Forbidden`, which names the scope that is missing, unless `allows`."""
        if not self.allows(scope, role):
            lacking = f"{scope}:{role or '<role>'}" if role or scope in NAMING_ROLES else str(scope)
            raise Forbidden(f"the key {self.key_id or 'of this request'} lacks the scope `{lacking}`")

    def actor(self, declared: str | None = None) -> str:
        """Who acts, as records and audit logs name it.

        `declared`: who the request says that it is; with a key that is only whom it acts for, without one it is all
        that is known.
        """
        if self.key_id is None:
            return declared or self.name
        known = f"{self.name} ({self.key_id})"
        return known if declared in (None, "", self.name, known) else f"{known} on behalf of {declared}"

    def is_named_in(self, actor: str) -> bool:
        """Whether a record says that this one acted: with this key, or another one of the same name."""
        return actor.startswith((f"{self.name} (", f"{self.name},")) or f"({self.key_id})" in actor


ANYONE = Caller(None, "anonymous", frozenset({KeyScope.ADMIN}))
"""The caller of a service that asks for no keys."""
UNAUTHENTICATED = Caller(None, "unauthenticated", frozenset())
"""The caller of a request that nothing has authenticated: it may do nothing."""


def checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """The scopes, sorted, each once. Raises `BadRequest` for one that there is not, and without any."""
    checked = sorted(set(scopes))
    for scope in checked:
        kind, separator, role = scope.partition(":")
        if separator:
            is_one = kind in _WITH_ROLES and _ROLES.fullmatch(role) is not None
        else:
            is_one = kind in {*KeyScope} - NAMING_ROLES
        if not is_one:
            ways = [f"{known}:<role>" if known in _WITH_ROLES else str(known) for known in KeyScope]
            raise BadRequest(
                f"there is no scope {scope[:80]!r}: {', '.join(ways)}; `*` is every role, `acme-*` every role that"
                " begins so",
                param="scopes",
            )
    if not checked:
        raise BadRequest("a key without a scope opens nothing: name one", param="scopes")
    return tuple(checked)


def new_key() -> tuple[str, str]:
    """A fresh key: its public id and the key itself, which nothing stores."""
    key_id = "key_" + "".join(secrets.choice(_ID) for _ in range(ID_LENGTH))
    return key_id, PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(key: bytes) -> str:
    """What is stored of a key, and what it is looked up by: hexadecimal."""
    return hashlib.sha256(key).hexdigest()


def why_unusable(key: Key, now: datetime) -> str | None:
    """Why a key opens nothing (any more); None when it does."""
    if key.revoked_at is not None:
        return f"the key {key.key_id} was revoked at {key.revoked_at:%Y-%m-%d %H:%M:%S %Z}"
    if key.expires_at is not None and key.expires_at <= now:
        return f"the key {key.key_id} expired at {key.expires_at:%Y-%m-%d %H:%M:%S %Z}"
    return None


def caller_with(key: Key) -> Caller:
    """Who calls with a key."""
    return Caller(key.key_id, key.name, frozenset(key.scopes), key.limits or NO_LIMITS)


def lacks_admin(keys: Sequence[Key], now: datetime) -> bool:
    """Whether no usable key among them can make others."""
    return not any(KeyScope.ADMIN in key.scopes and why_unusable(key, now) is None for key in keys)
