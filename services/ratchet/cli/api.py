"""What the services' HTTP APIs answer, as the structs of `ratchet.contract.http`; a failure is one clear line."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from ratchet.cli.endpoints import Endpoints
from ratchet.contract.http.answers import ErrorOut
from ratchet.contract.http.rollouts import PoliciesOut, RolePoliciesOut
from ratchet.contract.http.status import StatusOut
from ratchet.errors import NotFound, RatchetError, Rejected, Unavailable

T = TypeVar("T")

TIMEOUT_S = 30.0
"""A command waits this long for an answer."""


def get(endpoints: Endpoints, short: str, path: str, kind: type[T], *, timeout_s: float = TIMEOUT_S) -> T:
    """What the service answers. Raises `NoStack`, or as `refusal` does with what the service said."""
    return _call(endpoints, short, "GET", path, kind, timeout_s)


def post(
    endpoints: Endpoints, short: str, path: str, kind: type[T], body: object = None, *, timeout_s: float = TIMEOUT_S
) -> T:
    """What the service answers to `body`. Raises `NoStack`, or as `refusal` does with what the service said."""
    return _call(endpoints, short, "POST", path, kind, timeout_s, json=body)


def segment(name: str) -> str:
    """`name` as one segment of a path."""
    return quote(name, safe="")


def _call(
    endpoints: Endpoints, short: str, method: str, path: str, kind: type[T], timeout_s: float, **content: Any
) -> T:
    url = endpoints.url(short)
    try:
        response = httpx.request(method, f"{url}{path}", timeout=timeout_s, trust_env=False, **content)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"the {short} does not answer at {url} ({error or type(error).__name__})") from error
    if not response.is_success:
        raise refusal(short, response.status_code, response.content)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unavailable(f"{response.url} answered something else than its contract says: {error}") from error


def refusal(short: str, status: int, content: bytes) -> RatchetError:
    """The error that an answer with `status` stands for: `NotFound`, `Unavailable` or `Rejected`."""
    try:
        error = msgspec.json.decode(content, type=ErrorOut).error
        reason, param = error.message, error.param
    except (msgspec.DecodeError, UnicodeDecodeError):
        reason, param = content.decode(errors="replace").strip()[:500] or f"the {short} answered {status}", None
    if status == 404:
        return NotFound(reason)
    if status >= 500:
        return Unavailable(f"the {short} answered {status}: {reason}")
    return Rejected(reason, param=param)


def read_role(endpoints: Endpoints, role: str) -> RolePoliciesOut:
    """The role's route and policies, without policies while the role has none. Raises `NotFound`."""
    try:
        return get(endpoints, "deployer", f"/v1/policies/{segment(role)}", RolePoliciesOut)
    except NotFound:
        require_role(endpoints, role)
        return RolePoliciesOut(role=role, route=None, policies=[])


def read_roles(endpoints: Endpoints, role: str | None) -> PoliciesOut:
    """The same of one role or of all. Raises `NotFound` for a role nothing knows."""
    if role is None:
        return get(endpoints, "deployer", "/v1/policies", PoliciesOut)
    return PoliciesOut(roles=[read_role(endpoints, role)])


def require_role(endpoints: Endpoints, role: str) -> None:
    """Raise `NotFound` unless the role has a policy, a job or rewards."""
    require_known(role, get(endpoints, "coordinator", "/v1/status", StatusOut).roles)


def require_known(role: str, known: Collection[str]) -> None:
    """Raise `NotFound`, which names the roles that there are, unless the role is one of them."""
    if role not in known:
        raise NotFound(f"no such role: {role}; known: {', '.join(sorted(known)) or 'none yet'}")
