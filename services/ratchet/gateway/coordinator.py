"""Training through the same endpoint: jobs and status, forwarded to the coordinator."""

from __future__ import annotations

import re

from ratchet.errors import Unavailable
from ratchet.service.asgi import Request, Response, problem_response
from ratchet.service.http_client import TIMEOUT, AsyncApiClient, Reply, is_error
from ratchet.service.problems import HttpError

_JOBS = r"/v1/jobs(/[A-Za-z0-9][A-Za-z0-9_.-]{0,127}){0,2}"
_FORWARDED = {"GET": re.compile(rf"/v1/status(/training|/dpo)?|{_JOBS}"), "POST": re.compile(_JOBS)}


class Coordinator:
    """Forwards what an agent or a workflow step may ask of training."""

    def __init__(self, client: AsyncApiClient) -> None:
        self._client = client

    def takes(self, method: str, path: str) -> bool:
        """Whether this request is for the coordinator."""
        return method in _FORWARDED and _FORWARDED[method].fullmatch(path) is not None

    async def forward(self, request: Request, path: str) -> Response:
        """The coordinator's answer. Raises `HttpError` 502 when it is away, 504 when it takes too long."""
        target = f"{path}?{request.query}" if request.query else path
        try:
            reply = await self._client.exchange(request.method, target, body=request.body or None)
        except Unavailable as error:
            if error.code == TIMEOUT:
                raise HttpError(504, "the coordinator took too long", code="coordinator_timeout") from error
            raise HttpError(502, "the coordinator is not reachable", code="coordinator_unavailable") from error
        if 300 <= reply.status < 400:
            raise HttpError(502, "the coordinator points elsewhere", code="coordinator_unavailable")
        return _answer(reply)


def _answer(reply: Reply) -> Response:
    """The answer as it came; an error page of something in between is put into our words."""
    if reply.status < 400 or is_error(reply.content):
        return Response(reply.status, reply.content)
    return problem_response(HttpError(reply.status, f"the coordinator answered {reply.status}"))
