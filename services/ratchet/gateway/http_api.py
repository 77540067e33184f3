"""Method and path to handler: the gateway's own routes, and those that it forwards to the coordinator."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial

from ratchet.errors import Unavailable
from ratchet.gateway.completions import Completions
from ratchet.gateway.domain.forms import CHAT, TEXT
from ratchet.gateway.handlers import Handlers
from ratchet.service.asgi import Answer, Find, Handler, Request, Response, problem_response
from ratchet.service.http_client import TIMEOUT, AsyncApiClient, is_error
from ratchet.service.problems import HttpError

RouteHandler = Callable[[Request, str | None], Awaitable[Answer]]
"""A handler, given the trajectory that the path names."""

_BELOW_TRAJECTORY = re.compile(r"/t/(?P<trajectory>[^/]+)(?P<path>/v1/.*)")
_END = re.compile(r"/v1/trajectories/(?P<trajectory>[^/]+)/end")
_MODEL = re.compile(r"/v1/models/(?P<name>[^/]+)")
_JOBS = r"/v1/jobs(/[A-Za-z0-9][A-Za-z0-9_.-]{0,127}){0,2}"
_FORWARDED = {"GET": re.compile(rf"/v1/status(/training|/dpo)?|{_JOBS}"), "POST": re.compile(_JOBS)}


def route_finder(completions: Completions, handlers: Handlers, coordinator: AsyncApiClient | None) -> Find:
    """Method and path to handler; without a coordinator there are no training routes."""
    table: dict[tuple[str, str], RouteHandler] = {
        ("POST", "/v1/chat/completions"): partial(completions.complete, CHAT),
        ("POST", "/v1/completions"): partial(completions.complete, TEXT),
        ("GET", "/v1/models"): handlers.models,
        ("POST", "/v1/feedback"): handlers.feedback,
    }

    def find(method: str, path: str) -> Handler:
        trajectory, plain = split_path(path)
        handler = table.get((method, plain))
        if handler is not None:
            return lambda request: handler(request, trajectory)
        if coordinator is not None and method in _FORWARDED and _FORWARDED[method].fullmatch(plain):
            return partial(forward, coordinator, plain)
        ended, model = _END.fullmatch(plain), _MODEL.fullmatch(plain)
        if ended is not None and method == "POST":
            return lambda request: handlers.end(request, ended["trajectory"])
        if model is not None and method == "GET":
            return lambda request: handlers.model(model["name"], request, trajectory)
        if ended is not None or model is not None or any(plain == known for _, known in table):
            raise HttpError(405, f"{method} is not allowed on {plain}")
        raise HttpError(404, f"no such path: {path}; the gateway's README lists the paths")

    return find


def split_path(path: str) -> tuple[str | None, str]:
    """(trajectory id or None, plain path): a base_url may carry the trajectory as `/t/<id>/v1`."""
    below = _BELOW_TRAJECTORY.fullmatch(path)
    return (below["trajectory"], below["path"]) if below else (None, path)


async def forward(coordinator: AsyncApiClient, path: str, request: Request) -> Response:
    """The coordinator's answer; an error page of a proxy in between becomes an error in our shape.

    Raises `HttpError` 502 when the coordinator is away, 504 when it takes too long.
    """
    target = f"{path}?{request.query}" if request.query else path
    try:
        reply = await coordinator.exchange(request.method, target, body=request.body or None)
    except Unavailable as error:
        if error.code == TIMEOUT:
            message = "the coordinator took too long; it may have taken the request: GET /v1/jobs shows its jobs"
            raise HttpError(504, message, code="coordinator_timeout") from error
        message = "the coordinator is not reachable; try again later"
        raise HttpError(502, message, code="coordinator_unavailable") from error
    if 300 <= reply.status < 400:
        message = "the coordinator answered with a redirect, which the gateway does not follow: correct its URL"
        raise HttpError(502, message, code="coordinator_unavailable")
    if reply.status < 400 or is_error(reply.content):
        return Response(reply.status, reply.content)
    return problem_response(HttpError(reply.status, f"the coordinator, or a proxy before it, answered {reply.status}"))
