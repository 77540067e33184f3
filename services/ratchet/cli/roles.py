"""Whether anything knows a role: every command says the same of one that nothing knows."""

from __future__ import annotations

from ratchet.cli.api import call
from ratchet.cli.endpoints import Endpoints
from ratchet.kernel.errors import NotFound


def require_role(endpoints: Endpoints, role: str) -> None:
    """Raise `NotFound` unless the role has a policy, a job or rewards."""
    if role not in call(endpoints, "coordinator", "GET", "/v1/status")["roles"]:
        raise NotFound(f"no such role: {role}")
