"""The answers of the services' HTTP APIs, as structs of `ratchet.core.contract.http`; a failure is one clear line."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar
from urllib.parse import quote

from ratchet.cli.endpoints import Endpoints
from ratchet.core.contract.http.rollouts import PoliciesOut, RolePoliciesOut
from ratchet.core.contract.http.status import StatusOut
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.service.http_client import ApiClient, Peer, bearer

T = TypeVar("T")

TIMEOUT_S = 30.0
"""A command waits this long for an answer."""
KEY_VARIABLE = "RATCHET_API_KEY"
"""Environment variable with the API key that commands send."""
INVALID_KEY = "invalid_api_key"
"""Code of the error of a request without a usable key."""


def get(endpoints: Endpoints, short: str, path: str, kind: type[T], *, timeout_s: float = TIMEOUT_S) -> T:
    """The service's answer. Raises `NoStack`, `Unavailable`, or the error of the service with its own words."""
    return _call(endpoints, short, "GET", path, kind, timeout_s)


def post(
    endpoints: Endpoints, short: str, path: str, kind: type[T], body: object = None, *, timeout_s: float = TIMEOUT_S
) -> T:
    """The service's answer to `body`. Raises as `get` does."""
    return _call(endpoints, short, "POST", path, kind, timeout_s, body)


def segment(name: str) -> str:
    """`name` as one segment of a path."""
    return quote(name, safe="")


def _call(
    endpoints: Endpoints, short: str, method: str, path: str, kind: type[T], timeout_s: float, body: object = None
) -> T:
    peer = Peer(f"the {short}", endpoints.url(short), bearer(endpoints.env.get(KEY_VARIABLE)), timeout_s)
    try:
        return ApiClient(peer).ask(method, path, kind, body=body)
    except Rejected as error:
        if error.code != INVALID_KEY:
            raise
        raise Rejected(f"{error}; {KEY_VARIABLE} is the key that `ratchet` sends", code=error.code) from error


def read_role(endpoints: Endpoints, role: str, timeout_s: float = TIMEOUT_S) -> RolePoliciesOut:
    """The role's route and policies, without policies while the role has none. Raises `NotFound`."""
    try:
        return get(endpoints, "deployer", f"/v1/policies/{segment(role)}", RolePoliciesOut, timeout_s=timeout_s)
    except NotFound:
        require_role(endpoints, role)
        return RolePoliciesOut(role=role, route=None, policies=[])


def read_roles(endpoints: Endpoints, role: str | None) -> PoliciesOut:
    """The same of one role or of all. Raises `NotFound` for an unknown role."""
    if role is None:
        return get(endpoints, "deployer", "/v1/policies", PoliciesOut)
    return PoliciesOut(roles=[read_role(endpoints, role)])


def require_role(endpoints: Endpoints, role: str) -> None:
    """Raise `NotFound` unless the role has a policy, a job or rewards."""
    require_known(role, known_roles(endpoints))


def known_roles(endpoints: Endpoints) -> Collection[str]:
    """The roles that have a policy, a job or rewards."""
    return get(endpoints, "coordinator", "/v1/status", StatusOut).roles


def require_known(role: str, known: Collection[str]) -> None:
    """Raise `NotFound`, which names the known roles, unless the role is one of them."""
    if role not in known:
        raise NotFound(f"no such role: {role}; known: {', '.join(sorted(known)) or 'none yet'}")
