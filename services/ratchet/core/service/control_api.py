"""A control API: one table of routes, whose handlers take and return structs of the contract.

    api = ControlApi("Ratchet coordinator", "Training jobs.", errors={503: "The broker is away."})
    api.route("GET", "/v1/jobs/{job_id}", get_job, scope=KeyScope.VIEW, errors={404: "No such job."})

    async def get_job(job_id: str) -> JobOut: ...

Requests are read, and the document is written, by the signatures of the handlers: a parameter `Caller` is who asks
(`authentication` in front of the application has found out), a struct is the body, a pydantic model is the whole query,
and every other parameter stands in the path or the query. `tuple[int, JobOut]` is an answer with a status of its own.

A key may have a scope for some roles only. What is called `role` in the path, the query or the body must be one of
them; a parameter `RoleSet` is all of them, to which the handler keeps its answer. A route that neither names a role nor
takes that parameter is about all of them, and refuses such a key.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, cast, get_args, get_origin

import msgspec
from pydantic import BaseModel, ValidationError, create_model
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ratchet.bus.message import decode
from ratchet.core.contract.http.answers import ErrorOut
from ratchet.core.errors import BadRequest, Forbidden, RatchetError
from ratchet.core.rules.access import ALL_ROLES, UNAUTHENTICATED, Caller, KeyScope, RoleSet
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.asgi import IDENTIFY, RECORD_BYTES, body_too_large, caller_of
from ratchet.core.service.audit import Act, AuditLog, by_caller
from ratchet.core.service.openapi import REFERENCE, Schema, components, reference
from ratchet.core.service.problems import HttpError, http_error, internal_error

REFUSED: Mapping[int, str] = {
    401: "No API key that this service knows, or one that has expired or was revoked.",
    403: "The API key lacks the scope of this operation; or the request is for a host that is none of"
    " RATCHET_ALLOWED_HOSTS.",
}
"""Answers to any request, see `authentication` and `same_site`."""
CHANGING: Mapping[int, str] = {
    403: "The API key lacks the scope of this operation; or the request is from a page of another site, or for a host"
    " that is none of RATCHET_ALLOWED_HOSTS.",
    400: "The body is not JSON, or one of the headers that are checked comes twice.",
    415: "The content type is not application/json.",
}
"""Further answers to any request that changes something, see `same_site`."""
AUDIT = "ratchet.audit"
"""Member of an ASGI scope: the audit log; without one nothing is recorded, as where only the document is asked for."""
NAMING = ("trajectory_id", "rollout_id", "training_job_id", "pair_id", "rater", "name", "version", "kind", "ref")
"""Members of a body that name what it is about; its path names the rest."""
JSON, EVENTS = "application/json", "text/event-stream"
_SAVED = {"content-disposition": 'attachment; filename="text.txt"', "x-content-type-options": "nosniff"}
"""Headers of a text that no browser may read as a page."""
SECURITY_SCHEMES: Mapping[str, Mapping[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, see `ratchet keys`."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
}
"""How a request names its caller. Every operation lists the scope that it takes."""
Handler = Callable[..., Awaitable[Any]]
"""Returns a struct, or a status and a struct."""


@dataclass(frozen=True, slots=True)
class Body:
    """How a body is read that its struct describes in part only, and the schemas that describe all of it."""

    read: Callable[[bytes], Any]
    """Returns the struct; raises an error of the tree."""
    schemas: Callable[[], Mapping[str, Schema]]
    """They replace the struct's schemas in the document."""


class _Arguments:
    """What a handler takes from a request, and the document's words for it."""

    def __init__(
        self, path: str, handler: Handler, bodies: Mapping[type[msgspec.Struct], Body], body_bytes: int
    ) -> None:
        self._caller = self._query = self._body = ""
        """Names of the parameters that take who asks, the whole query, and the body."""
        self.roles = ""
        """Name of the one that takes the roles that the scope is held for."""
        self.body: type[msgspec.Struct] | None = None
        self._body_bytes = body_bytes
        self._in_path = set(re.findall(r"{(\w+)}", path))
        values: dict[str, Any] = {}
        model: type[BaseModel] | None = None
        for name, parameter in inspect.signature(handler, eval_str=True).parameters.items():
            kind = parameter.annotation
            if kind is Caller:
                self._caller = name
            elif kind is RoleSet:
                self.roles = name
            elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                self._body, self.body = name, kind
                self._read = bodies[kind].read if kind in bodies else _reader(kind)
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                self._query, model = name, kind
            else:
                values[name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
        self._values: type[BaseModel] = create_model("Values", **values)
        self._model = model
        self.names_role = "role" in {*values, *(model.model_fields if model else ())}
        """Whether the path or the query may name a role."""

    async def of(self, request: Request, scope: KeyScope | None) -> dict[str, Any]:
        """The arguments of a call. Raises an error of the tree: one line that names every parameter that is wrong, or
        `Forbidden` for a role that its caller's `scope` is not for."""
        caller = caller_of(request.scope)
        query = {name: value for name, value in request.query_params.items() if name not in self._in_path}
        named = (query | request.path_params).get("role") if self.names_role else None
        if scope is not None and named:
            caller.require(scope, named)
        body = self._read(await _body_of(request, self._body_bytes)) if self.body is not None else None
        about = getattr(body, "role", None)
        if scope is not None and about is not None:
            caller.require(scope, about)
        roles = caller.roles(scope) if scope is not None else ALL_ROLES
        if not (named or about or self.roles or roles.is_every):
            raise Forbidden(f"the key {caller.key_id} has the scope `{scope}` for some roles only: this is about all")
        own = {self._body: body, self._caller: caller, self.roles: roles}
        try:
            if self._model is not None:
                own[self._query] = self._model.model_validate(query)
            read = self._values.model_validate(query | request.path_params)
        except ValidationError as error:
            places = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors(include_url=False)]
            line = "; ".join(f"{place}: {reason}" for place, reason in places)
            raise HttpError(422, line, param=places[0][0]) from error
        own |= {name: getattr(read, name) for name in self._values.model_fields}
        return {name: value for name, value in own.items() if name}

    def described(self, schemas: dict[str, Schema]) -> Iterator[Mapping[str, Any]]:
        """The parameters in the document; what they refer to is added to `schemas`."""
        for model in (self._values, self._model):
            document = model.model_json_schema(ref_template=REFERENCE.replace("{name}", "{model}")) if model else {}
            schemas |= document.get("$defs", {})
            for name, schema in document.get("properties", {}).items():
                if schema.get("default", ...) is None:  # leaving it out means the same
                    del schema["default"]
                described = {"description": schema["description"]} if "description" in schema else {}
                place, required = "path" if name in self._in_path else "query", name in document.get("required", ())
                yield {"name": name, "in": place, "required": required, "schema": schema, **described}


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """A row of the table."""

    verb: str
    path: str
    handler: Handler
    scope: KeyScope | None
    answer: Callable[[Any], Response]
    """The answer from what the handler returned."""
    arguments: _Arguments
    reads: bool
    """Whether it hands out what the audit log keeps account of."""
    urgent: bool
    """Whether it goes on where the audit log cannot be written."""
    responses: Mapping[int, Mapping[str, Any]]

    async def serve(self, request: Request) -> Response:
        """Refuse a caller without the scope before anything else is looked at; then read, and answer."""
        caller = caller_of(request.scope)
        if self.scope is not None:
            caller.require(self.scope)
        elif caller == UNAUTHENTICATED:
            raise Forbidden("nothing has authenticated this request")
        arguments = await self.arguments.of(request, self.scope)
        audit: AuditLog | None = request.scope.get(AUDIT)
        if audit is None:
            return self.answer(await self.handler(**arguments))
        return self.answer(await self._audited(audit, request, arguments))

    async def _audited(self, audit: AuditLog, request: Request, arguments: Mapping[str, Any]) -> Any:
        """What the handler returns. What changes something is in the audit log before, and what is read, soon after."""
        body = next((value for value in arguments.values() if isinstance(value, msgspec.Struct)), None)
        query = next((value for value in arguments.values() if isinstance(value, BaseModel)), None)
        by = by_caller(caller_of(request.scope), getattr(body, "actor", None))
        role = _role_of(arguments.get("role") or getattr(query, "role", None) or getattr(body, "role", None))
        named = [str(value) for name, value in request.path_params.items() if name != "role"]
        named += [str(value) for name in NAMING if (value := getattr(body, name, None)) is not None]
        act = Act(self.handler.__name__, by, role, named)
        if self.verb == "POST" and not self.reads and not _is_dry_run(arguments):
            async with audit.act(act, urgent=self.urgent):
                return await self.handler(**arguments)
        returned = await self.handler(**arguments)
        if self.reads:
            audit.note(act)
        return returned

    def described(self, schemas: dict[str, Schema]) -> dict[str, Any]:
        """The operation in the document; what its parameters refer to is added to `schemas`."""
        name, body = self.handler.__name__, self.arguments.body
        parameters = list(self.arguments.described(schemas))
        return {
            "tags": [self.path.removeprefix("/v1/").strip("/").partition("/")[0]],
            "summary": name.replace("_", " ").title(),
            "description": inspect.cleandoc(self.handler.__doc__ or ""),
            "operationId": re.sub(r"\W", "_", f"{name}{self.path}") + f"_{self.verb.lower()}",
            **({"parameters": parameters} if parameters else {}),
            **({"requestBody": {"required": True, "content": _content(body)}} if body else {}),
            "responses": {str(status): dict(response) for status, response in self.responses.items()},
            "security": [{scheme: [str(self.scope)] if self.scope else []} for scheme in SECURITY_SCHEMES],
        }


class ControlApi:
    """The table of routes as an ASGI application, which also serves its own document."""

    def __init__(
        self,
        title: str,
        description: str,
        errors: Mapping[int, str],
        bodies: Mapping[type[msgspec.Struct], Body] | None = None,
        body_bytes: int = RECORD_BYTES,
    ) -> None:
        """`errors`: those that every route may answer, by status. `bodies`: the structs that have a `Body`;
        `body_bytes`: the most of any body."""
        self.operations: list[Operation] = []
        self._title, self._description = title, description
        self._errors = errors
        self._bodies = bodies or {}
        self._body_bytes = body_bytes
        self._kinds: dict[type[msgspec.Struct], None] = {ErrorOut: None}
        self.audit: AuditLog | None = None
        """Takes the acts; set where the service is put together."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        await self._app({**scope, AUDIT: self.audit}, receive, send)

    @cached_property
    def _app(self) -> Starlette:
        async def document(_: Request) -> Response:
            return Response(msgspec.json.encode(self.document), media_type=JSON)

        served = [Route(row.path, row.serve, methods=[row.verb]) for row in self.operations]
        return Starlette(routes=[*served, Route("/openapi.json", document)], exception_handlers=_ERRORS)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        schemas: dict[str, Schema] = {}
        paths: dict[str, dict[str, Any]] = {}
        for row in self.operations:
            paths.setdefault(row.path, {})[row.verb.lower()] = row.described(schemas)
        schemas |= components([*self._kinds])
        for body in self._bodies.values():
            schemas |= body.schemas()
        answers = [operation["responses"] for members in paths.values() for operation in members.values()]
        return {
            "openapi": "3.1.0",
            "info": {"title": self._title, "description": self._description, "version": "1"},
            "paths": paths,
            "components": {
                "responses": _shared_errors(answers),
                "schemas": {name: schemas[name] for name in sorted(schemas)},
                "securitySchemes": SECURITY_SCHEMES,
            },
        }

    def route(  # noqa: PLR0913 - a row of the table
        self,
        verb: str,
        path: str,
        handler: Handler,
        *,
        scope: KeyScope | None,
        answers: Mapping[int, str] | None = None,
        errors: Mapping[int, str] | None = None,
        reads: bool = False,
        urgent: bool = False,
    ) -> None:
        """Serve `path` with `handler`, for callers whose key has `scope`; None: for every caller that is known.

        A POST is an act of the audit log, by the handler's name, and refused where that cannot be written, unless it
        is `urgent`. `reads`: it hands out what people wrote, or keys: recorded afterwards, also of a GET.

        `answers`: by status; the first is that of a handler which returns no status of its own; by default 200.
        `errors`: by status, besides those of every route.
        """
        returned = inspect.signature(handler, eval_str=True).return_annotation
        kind: type[msgspec.Struct] = get_args(returned)[1] if get_origin(returned) is tuple else returned
        good = answers or {200: inspect.cleandoc(kind.__doc__ or "")}

        def answer(returned: Any) -> Response:
            code, out = (
                cast("tuple[int, Any]", returned) if isinstance(returned, tuple) else (next(iter(good)), returned)
            )
            return Response(msgspec.json.encode(out), code, media_type=JSON)

        described = {code: {"description": text, "content": _content(kind)} for code, text in good.items()}
        self._serve(verb, path, handler, scope, answer, described, errors or {}, reads=reads, urgent=urgent)
        self._kinds[kind] = None

    def stream(
        self,
        path: str,
        handler: Callable[..., Awaitable[AsyncGenerator[bytes, None]]],
        *,
        scope: KeyScope | None,
        events: Mapping[str, type[msgspec.Struct]],
        errors: Mapping[int, str] | None = None,
    ) -> None:
        """Serve server-sent events: `handler` returns them as they are sent, or raises. `events`: what is in the `data`
        of each, by its name. The stream ends before the first event that its caller's key opens no longer; with the
        scope None, that finds its key unknown."""
        self._kinds |= dict.fromkeys(events.values())
        content = {EVENTS: {"schema": {"oneOf": [reference(kind) for kind in events.values()]}}}
        described = {200: {"description": f"Events: {', '.join(events)}.", "content": content}}
        self._serve("GET", path, handler, scope, lambda sent: _Events(sent, scope), described, errors or {})

    def text_route(
        self, path: str, handler: Handler, *, scope: KeyScope, errors: Mapping[int, str] | None = None
    ) -> None:
        """Serve GET `path` with a handler that returns a text which someone else wrote: to be saved, never a page."""

        def answer(text: str) -> Response:
            return PlainTextResponse(text.encode(errors="replace"), headers=_SAVED)

        described = {"description": "The text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
        self._serve("GET", path, handler, scope, answer, {200: described}, errors or {}, reads=True)

    def _serve(  # noqa: PLR0913, PLR0917 - a row of the table
        self,
        verb: str,
        path: str,
        handler: Handler,
        scope: KeyScope | None,
        answer: Callable[[Any], Response],
        good: Mapping[int, Mapping[str, Any]],
        errors: Mapping[int, str],
        *,
        reads: bool = False,
        urgent: bool = False,
    ) -> None:
        arguments = _Arguments(path, handler, self._bodies, self._body_bytes)
        if arguments.body is not None and arguments.body not in self._bodies:
            self._kinds[arguments.body] = None
        refused = {**self._errors, **REFUSED, **(CHANGING if verb == "POST" else {}), **errors}
        bad = {code: {"description": text, "content": _content(ErrorOut)} for code, text in sorted(refused.items())}
        self.operations.append(
            Operation(
                verb=verb,
                path=path,
                handler=handler,
                scope=scope,
                answer=answer,
                arguments=arguments,
                reads=reads,
                urgent=urgent,
                responses={**bad, **good},
            )
        )


def _role_of(value: object) -> str | None:
    return value if isinstance(value, str) and ROLE.fullmatch(value) else None


def _is_dry_run(arguments: Mapping[str, Any]) -> bool:
    return any(getattr(value, "dry_run", False) is True for value in arguments.values())


def _shared_errors(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The error that most routes answer with a status, by the name of the status; the routes refer to it."""
    shared: dict[str, Any] = {}
    for status in sorted({status for by_status in answers for status in by_status if status >= "400"}):
        texts = Counter(by_status[status]["description"] for by_status in answers if status in by_status)
        text, uses = texts.most_common(1)[0]
        if uses == 1:
            continue
        name = HTTPStatus(int(status)).phrase.replace(" ", "")
        for by_status in answers:
            if status in by_status and by_status[status]["description"] == text:
                shared[name] = by_status[status]
                by_status[status] = {"$ref": f"#/components/responses/{name}"}
    return shared


class _Events(StreamingResponse):
    """Asks before each event whether its caller may still read it."""

    def __init__(self, events: AsyncGenerator[bytes, None], needed: KeyScope | None) -> None:
        super().__init__(events, media_type=EVENTS)
        self._events, self._needed = events, needed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body_iterator = self._allowed(scope.get(IDENTIFY))
        await super().__call__(scope, receive, send)

    async def _allowed(self, identify: Callable[[], Awaitable[Caller]] | None) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._events) as events:
            async for event in events:
                try:
                    caller = await identify() if identify else UNAUTHENTICATED
                    if self._needed is not None:
                        caller.require(self._needed)
                except RatchetError:
                    return  # its page asks for another stream, and reads why
                yield event


async def _body_of(request: Request, most: int) -> bytes:
    """The whole body. Raises `HttpError` for one that is too large, once it has been read and dropped."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size <= most:
            parts.append(part)
    if size > most:
        raise body_too_large(most)
    return b"".join(parts)


def _reader(kind: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        try:
            return decode(content, kind)
        except msgspec.ValidationError as error:
            # The member that msgspec blames: its place in the body, and the one that is missing or unknown there.
            places = (re.search(pattern, str(error)) for pattern in (r"`\$\.(.+)`$", r"field `(\w+)`"))
            blamed = ".".join(place[1] for place in places if place) or None
            raise BadRequest(f"bad request: {error}", param=blamed) from error
        except msgspec.DecodeError as error:
            raise BadRequest(f"bad request: {error}", code="invalid_json") from error

    return read


def _content(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {JSON: {"schema": reference(kind)}}


async def _failed(_: Request, error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):  # no such path, or another method
        problem, headers = HttpError(error.status_code, error.detail), error.headers or {}
    else:  # the server logs an error that is not of the tree itself
        problem = http_error(error) if isinstance(error, RatchetError) else internal_error()
    own = {name.decode(): value.decode() for name, value in problem.headers}
    return Response(problem.json, problem.status, {**own, **headers}, JSON)


_ERRORS = dict.fromkeys((RatchetError, HTTPException, Exception), _failed)
