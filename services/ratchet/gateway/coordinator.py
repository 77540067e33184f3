"""Training through the same endpoint: jobs and status, forwarded to the coordinator, errors in OpenAI's shape."""

from __future__ import annotations

import re

import aiohttp
import msgspec

from ratchet.contract.http.answers import ErrorOut
from ratchet.gateway.engines.http_post import UNREADABLE, bounded
from ratchet.service.asgi import Request, Response, problem_response
from ratchet.service.problems import HttpError

_JOBS = r"/v1/jobs(/[A-Za-z0-9][A-Za-z0-9_.-]{0,127}){0,2}"
_FORWARDED = {"GET": re.compile(rf"/v1/status(/training|/dpo)?|{_JOBS}"), "POST": re.compile(_JOBS)}
TIMEOUT_S = 30.0


class Coordinator:
    """Forwards what an agent or a workflow step may ask of training."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")

    def takes(self, method: str, path: str) -> bool:
        """Whether this request is for the coordinator."""
        return method in _FORWARDED and _FORWARDED[method].fullmatch(path) is not None

    async def forward(self, request: Request, path: str) -> Response:
        """The coordinator's answer. Raises `HttpError` 502 when it is away, 504 when it takes too long."""
        url = self._url + path + (f"?{request.query}" if request.query else "")
        try:
            async with self._session.request(
                request.method,
                url,
                data=request.body or None,
                headers={"content-type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                allow_redirects=False,
            ) as answer:
                body = await bounded(answer)
        except TimeoutError as error:
            raise HttpError(504, "the coordinator took too long", code="coordinator_timeout") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise HttpError(502, "the coordinator is not reachable", code="coordinator_unavailable") from error
        if 300 <= answer.status < 400:
            raise HttpError(502, "the coordinator points elsewhere", code="coordinator_unavailable")
        if answer.status < 400 or _is_error(body):
            return Response(answer.status, body)
        return problem_response(HttpError(answer.status, f"the coordinator answered {answer.status}"))


def _is_error(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=ErrorOut)
    except UNREADABLE:
        return False
    return True
