"""One HTTP request to a service of ours, its failure as one clear line; whether anything knows a role."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from ratchet.cli.endpoints import Endpoints
from ratchet.errors import NotFound, RatchetError, Rejected, Unavailable

TIMEOUT_S = 30.0
"""A command waits this long for an answer."""

Json = Any
"""A decoded answer."""


class _Blamed(msgspec.Struct):
    param: str | None = None


class _OpenAiError(msgspec.Struct):
    error: _Blamed


class Refused(Rejected):
    """A service refused a request."""

    def __init__(self, reason: str, param: str | None) -> None:
        super().__init__(reason)
        self.param = param
        """The member of the request that is to blame, where the service says so."""


def call(
    endpoints: Endpoints, short: str, method: str, path: str, body: Json = None, *, timeout_s: float = TIMEOUT_S
) -> Json:
    """The decoded answer. Raises `NoStack`, `Unavailable`, `NotFound` or `Refused` with what the service said."""
    url = endpoints.url(short)
    try:
        response = httpx.request(method, f"{url}{path}", json=body, timeout=timeout_s, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"the {short} does not answer at {url} ({error or type(error).__name__})") from error
    if response.is_success:
        return _decoded(response)
    raise refusal(short, response.status_code, response.content)


def segment(name: str) -> str:
    """`name` as one segment of a path."""
    return quote(name, safe="")


def refusal(short: str, status: int, content: bytes) -> RatchetError:
    """The error that an answer with `status` stands for."""
    reason = _reason(content) or f"the {short} answered {status}"
    if status == 404:
        return NotFound(reason)
    if status >= 500:
        return Unavailable(f"the {short} answered {status}: {reason}")
    return Refused(reason, _param(content))


def _decoded(response: httpx.Response) -> Json:
    if not response.content:
        return None
    try:
        return msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unavailable(f"{response.url} answered something that is not JSON") from error


def _reason(content: bytes) -> str:
    """The message of an error in OpenAI's shape, in FastAPI's, or the text itself."""
    try:
        body: Json = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return content.decode(errors="replace").strip()[:500]
    if not isinstance(body, dict):
        return str(body)
    found: Json = body.get("error") or body.get("detail") or body  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if isinstance(found, dict):
        return str(found.get("message") or found)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if isinstance(found, list):
        return "; ".join(_detail(one) for one in found)  # pyright: ignore[reportUnknownVariableType]
    return str(found)


def _param(content: bytes) -> str | None:
    """The member that an error in OpenAI's shape names."""
    try:
        return msgspec.json.decode(content, type=_OpenAiError).error.param
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _detail(one: Json) -> str:
    """One problem in FastAPI's list of them."""
    if not isinstance(one, dict):
        return str(one)
    where = ".".join(str(part) for part in one.get("loc", ()))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]
    return f"{where}: {one.get('msg', one)}"  # pyright: ignore[reportUnknownMemberType]


def require_role(endpoints: Endpoints, role: str) -> None:
    """Raise `NotFound` unless the role has a policy, a job or rewards."""
    require_known(role, call(endpoints, "coordinator", "GET", "/v1/status")["roles"])


def require_known(role: str, known: Collection[str]) -> None:
    """Raise `NotFound`, which names the roles that there are, unless the role is one of them."""
    if role not in known:
        raise NotFound(f"no such role: {role}; known: {', '.join(sorted(known)) or 'none yet'}")
