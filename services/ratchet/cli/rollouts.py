"""Reads rollouts from the deployer and sends it orders."""

from __future__ import annotations

from typing import Any

from ratchet.cli.api import call
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.policies import read_role
from ratchet.cli.roles import require_role
from ratchet.errors import NotFound

Json = dict[str, Any]
"""A decoded answer, or a body."""


def read(endpoints: Endpoints, role: str | None) -> Json:
    """One role's newest rollout, or `{"rollouts": [...]}` of all. Raises `NotFound`."""
    if role is None:
        return call(endpoints, "deployer", "GET", "/v1/rollouts")
    try:
        return call(endpoints, "deployer", "GET", f"/v1/rollouts/{role}")
    except NotFound as error:
        require_role(endpoints, role)
        raise NotFound(f"there was no rollout of {role} yet") from error


def act(endpoints: Endpoints, order: str, body: Json) -> Json:
    """Send `<role>/<verb>`; the rollout as it is then, with `dry_run` in the body as it would be.

    Raises `NotFound`, or `Rejected` in the wrong state.
    """
    try:
        return call(endpoints, "deployer", "POST", f"/v1/rollouts/{order}", body)
    except NotFound:
        _require_object(endpoints, order, body)
        raise


def _require_object(endpoints: Endpoints, order: str, body: Json) -> None:
    """The deployer knows only roles with a policy: say what an order lacks. Raises `NotFound`."""
    role, _, verb = order.partition("/")
    require_role(endpoints, role)
    if verb not in ("start", "revert"):
        read(endpoints, role)
    elif verb == "start" and body["version"] not in [
        policy["version"] for policy in read_role(endpoints, role)["policies"]
    ]:
        raise NotFound(f"{role} has no policy of version {body['version']}")
