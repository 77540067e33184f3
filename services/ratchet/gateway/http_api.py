"""Method and path to handler: the gateway's own routes, and those that it forwards to the coordinator."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from ratchet.core.errors import BadRequest, Unavailable
from ratchet.core.rules.access import KeyScope
from ratchet.core.service.asgi import Answer, EventStream, Find, Handler, Request, Response, problem_response
from ratchet.core.service.authentication import own_key
from ratchet.core.service.http_client import TIMEOUT, AsyncApiClient, is_error
from ratchet.core.service.problems import HttpError, not_allowed
from ratchet.dialects.apis import APIS
from ratchet.dialects.messages.dialect import COUNT_PATH
from ratchet.dialects.requests import read_fields, value_of
from ratchet.gateway.completions import Completions
from ratchet.gateway.fetching import BundleFetcher
from ratchet.gateway.handlers import Handlers
from ratchet.gateway.opt_outs import OptOutRoutes
from ratchet.gateway.other_calls import OtherCalls
from ratchet.gateway.quotas import Quotas
from ratchet.gateway.telemetry import SIGNALS, Telemetry

RouteHandler = Callable[[Request, str | None], Awaitable[Answer]]
"""A handler, given the trajectory that the path names."""


class Route(NamedTuple):
    """What a path does, and for whom."""

    scope: KeyScope
    """What the caller's key must allow, for some role; the handler asks for the role that a request is about."""
    handler: RouteHandler
    is_metered: bool = True
    """Whether a POST with the scope `infer` is a model call, which counts against what its key may use."""


_BELOW_TRAJECTORY = re.compile(r"/t/(?P<trajectory>[^/]+)(?P<path>/.*)")
_SLASHED = re.compile(r"/t/(?P<name>[^/]+(?:/[^/]+)+?)(?P<path>/(?:v1|openai)/.*)")
"""A base_url whose trajectory has a slash in its name as it is."""
_AZURE = re.compile(r"(/t/[^/]+)?/openai/deployments/(?P<model>[^/]+)(?P<path>/.*)")
_END = re.compile(r"/v1/trajectories/(?P<trajectory>[^/]+)/end")
_BODY = re.compile(r"/v1/bodies/(?P<sha256>.+)", re.DOTALL)
_RESPONSE = re.compile(r"/v1/responses/(?P<id>[^/]+)(?P<items>/input_items)?")
_MODEL = re.compile(r"/v1/models/(?P<name>.+)")
_JOBS = r"/v1/jobs(/[A-Za-z0-9][A-Za-z0-9_.-]{0,127}){0,2}"
_FORWARDED = {"GET": re.compile(rf"/v1/status(/training|/dpo)?|{_JOBS}"), "POST": re.compile(_JOBS)}


def further_routes(
    bundles: BundleFetcher, telemetry: Telemetry, opt_outs: OptOutRoutes
) -> Mapping[tuple[str, str], Route]:
    """The routes of agents that compose their own prompts, or send telemetry, and of people who opt out."""
    return {
        ("GET", "/v1/bundle"): Route(KeyScope.INFER, bundles.get),
        ("GET", "/v1/opt-outs"): Route(KeyScope.VIEW, opt_outs.list_kept),
        ("POST", "/v1/opt-outs"): Route(KeyScope.FEEDBACK, opt_outs.opt_out),
        ("POST", "/v1/opt-ins"): Route(KeyScope.FEEDBACK, opt_outs.opt_in),
        **{
            ("POST", f"/v1/{signal}"): Route(KeyScope.INFER, partial(telemetry.take, signal), is_metered=False)
            for signal in SIGNALS
        },
    }


def route_finder(
    completions: Completions,
    others: OtherCalls,
    handlers: Handlers,
    further: Mapping[tuple[str, str], Route],
    coordinator: AsyncApiClient | None,
    quotas: Quotas,
) -> Find:
    """Method and path to handler; without a coordinator there are no training routes. `further`: other routes."""
    table = {
        **further,
        **{
            ("POST", f"/v1{api.path}"): Route(KeyScope.INFER, partial(completions.complete, api))
            for api in APIS.values()
        },
        ("POST", f"/v1{COUNT_PATH}"): Route(KeyScope.INFER, others.count_tokens),
        ("POST", "/v1/embeddings"): Route(KeyScope.INFER, others.embeddings),
        ("GET", "/v1/responses"): Route(KeyScope.INFER, refuse_websocket),
        ("GET", "/v1/models"): Route(KeyScope.INFER, others.list_models),
        ("POST", "/v1/feedback"): Route(KeyScope.FEEDBACK, handlers.feedback),
    }

    def route_of(method: str, plain: str) -> Route | None:
        if coordinator is not None and method in _FORWARDED and _FORWARDED[method].fullmatch(plain):
            scope = KeyScope.VIEW if method == "GET" else KeyScope.TRAIN
            return Route(scope, partial(forward, coordinator, plain))
        response, model = _RESPONSE.fullmatch(plain), _MODEL.fullmatch(plain)
        if response is not None:
            return _response_route(handlers, method, response)
        if method == "POST" and (ended := _END.fullmatch(plain)):
            return Route(KeyScope.FEEDBACK, partial(handlers.end, ended["trajectory"]))
        if method == "PUT" and (body := _BODY.fullmatch(plain)):
            return Route(KeyScope.INFER, partial(handlers.keep_body, body["sha256"]))
        if model is not None and method == "GET":
            return Route(KeyScope.INFER, partial(others.get_model, model["name"]))
        return None

    def find(method: str, path: str) -> Handler:
        trajectory, plain = split_path(path)
        method = "GET" if method == "HEAD" else method
        route = table.get((method, plain)) or route_of(method, plain)
        if route is None:
            allowed = _methods_of(plain, table)
            raise not_allowed(method, plain, allowed) if allowed else unknown_path(path, plain)
        answer, azure = partial(call, route, quotas, trajectory), _AZURE.fullmatch(path)
        if azure is None or route.scope != KeyScope.INFER:
            return answer
        return partial(of_deployment, azure["model"], answer)

    return find


def _methods_of(plain: str, table: Mapping[tuple[str, str], Route]) -> list[str]:
    """Those that a path has which is no response's; none for a path that the gateway does not have."""
    if _END.fullmatch(plain):
        return ["POST"]
    if _BODY.fullmatch(plain):
        return ["PUT"]
    if _MODEL.fullmatch(plain):
        return ["GET"]
    return [method for (method, known), route in table.items() if known == plain and route.handler != refuse_websocket]


async def of_deployment(model: str, answer: Handler, request: Request) -> Answer:
    """The answer to a request below a deployment of Azure, whose name is the model where the body names none."""
    if request.method == "POST":
        with suppress(BadRequest):  # the handler answers it
            fields = read_fields(request.body)
            if value_of(fields, "model") is None:
                named = {**fields, "model": msgspec.Raw(msgspec.json.encode(model))}
                request = msgspec.structs.replace(request, body=msgspec.json.encode(named))
    return await answer(request)


def is_json(path: str) -> bool:
    """Whether the bodies of a path are JSON, whose values are counted: telemetry is read elsewhere, others never."""
    plain = split_path(path)[1]
    return plain.removeprefix("/v1/") not in SIGNALS and not _BODY.fullmatch(plain)


def unknown_path(path: str, plain: str) -> HttpError:
    """The error for a path that the gateway does not have."""
    if plain.startswith("/v1/conversations"):
        instead = "continue by previous_response_id, or let the agent keep its session"
        return HttpError(404, f"the gateway keeps no conversations: {instead}", code="conversations_not_kept")
    if slashed := _SLASHED.fullmatch(path):
        right = f"/t/{slashed['name'].replace('/', '%2F')}{slashed['path']}"
        return HttpError(404, f"no such path: {path}; a slash in a trajectory's name is written %2F: {right}")
    return HttpError(404, f"no such path: {path}; the gateway's README lists the paths")


async def call(route: Route, quotas: Quotas, trajectory: str | None, request: Request) -> Answer:
    """The answer of a route. Raises `Forbidden` unless the caller's key has its scope for some role, and `HttpError`
    (429) for a model call of a key that has used up what it may."""
    request.caller.require(route.scope)
    if route.scope != KeyScope.INFER or request.method != "POST" or not route.is_metered:
        return await route.handler(request, trajectory)
    release = quotas.reserve(request.caller, len(request.body))
    if release is None:
        return await route.handler(request, trajectory)
    try:
        answer = await route.handler(request, trajectory)
    except BaseException:
        release()
        raise
    if isinstance(answer, EventStream):
        return EventStream(_then(answer.events, release), answer.headers)
    release()
    return answer


async def _then(events: AsyncGenerator[bytes, None], release: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    """The events of a stream; at its end, `release`."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    finally:
        release()


async def refuse_websocket(request: Request, _: str | None) -> Answer:
    """A GET of /v1/responses asks for a WebSocket. 426 is the answer after which Codex goes on over HTTP at once, and
    remembers it. Raises `HttpError`."""
    if "websocket" in (request.header(b"upgrade") or "").lower():
        raise HttpError(426, "responses come over HTTP here, not over a WebSocket: POST /v1/responses")
    raise not_allowed("GET", "/v1/responses", ["POST"])


def _response_route(handlers: Handlers, method: str, path: re.Match[str]) -> Route:
    routes = {("GET", True): handlers.list_input_items, ("GET", False): handlers.get_response}
    routes["DELETE", False] = handlers.delete_response
    handler = routes.get((method, path["items"] is not None))
    if handler is None:
        raise not_allowed(method, path[0], [allows for allows, items in routes if items == (path["items"] is not None)])
    return Route(KeyScope.INFER, partial(handler, path["id"]))


@lru_cache(maxsize=64)
def split_path(path: str) -> tuple[str | None, str]:
    """(trajectory or None, plain path): a base_url may carry the trajectory as `/t/<id>/v1`.

    Clients build paths on a base_url in their own ways: with a slash at the end, without `/v1`, with two of them, or as
    Azure does (`/openai/deployments/<name>`). All mean the same path.
    """
    below = _BELOW_TRAJECTORY.fullmatch(path)
    trajectory, plain = (below["trajectory"], below["path"]) if below else (None, path)
    if plain.startswith("/openai/"):
        azure = _AZURE.fullmatch(plain)
        plain = azure["path"] if azure else plain.removeprefix("/openai")
    plain = "/v1/" + plain.strip("/").removeprefix("v1/").removeprefix("v1/")
    return trajectory, plain


async def forward(coordinator: AsyncApiClient, path: str, request: Request, _: str | None) -> Response:
    """The coordinator's answer to the caller's own key. An error page of a proxy in between becomes one in our shape.

    Raises `HttpError` 502 when the coordinator is away, 504 when it takes too long.
    """
    target = f"{path}?{request.query}" if request.query else path
    try:
        reply = await coordinator.exchange(request.method, target, body=request.body or None, headers=own_key(request))
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
