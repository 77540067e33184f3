"""Whether anything knows a role: every command says the same of one that nothing knows."""

from __future__ import annotations

from collections.abc import Collection

from ratchet.cli.api import call
from ratchet.cli.endpoints import Endpoints
from ratchet.errors import NotFound


def require_role(endpoints: Endpoints, role: str) -> None:
    """Raise `NotFound` unless the role has a policy, a job or rewards."""
    require_known(role, call(endpoints, "coordinator", "GET", "/v1/status")["roles"])


def require_known(role: str, known: Collection[str]) -> None:
    """Raise `NotFound`, which names the roles that there are, unless the role is one of them."""
    if role not in known:
        raise NotFound(f"no such role: {role}; known: {', '.join(sorted(known)) or 'none yet'}")
