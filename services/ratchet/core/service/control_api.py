"""A control API: FastAPI's routes and parameters, with bodies and answers that are structs of the contract.

    api = ControlApi("Ratchet coordinator", "Training jobs.", errors={503: "The broker is away."})
    api.route("GET", "/v1/jobs/{job_id}", get_job, scope=KeyScope.VIEW, errors={404: "No such job."})

    async def get_job(job_id: str) -> JobOut: ...

The document follows from the signatures of the handlers; `tuple[int, JobOut]` is an answer with a status of its own. A
handler with a parameter `Caller` learns who asks; `authentication` in front of the application has found out.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, cast, get_args, get_origin

import msgspec
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ratchet.bus.message import decode
from ratchet.core.contract.http.answers import ErrorOut
from ratchet.core.errors import BadRequest, Forbidden, RatchetError
from ratchet.core.rules.access import UNAUTHENTICATED, Caller, KeyScope
from ratchet.core.service.asgi import IDENTIFY, caller_of
from ratchet.core.service.openapi import Schema, components, reference
from ratchet.core.service.problems import HttpError, http_error, internal_error

REFUSED: Mapping[int, str] = {
    401: "No API key that this service knows, or one that has expired or was revoked.",
    403: "The API key lacks the scope of this operation.",
}
"""Answers to any request, see `authentication`."""
CHANGING: Mapping[int, str] = {
    403: "The API key lacks the scope of this operation; or the request is from a page of another site, or for a host"
    " that is none of RATCHET_ALLOWED_HOSTS.",
    415: "The content type is not application/json.",
}
"""Further answers to any request that changes something, see `same_site`."""
JSON, EVENTS = "application/json", "text/event-stream"
_SAVED = {"content-disposition": 'attachment; filename="text.txt"', "x-content-type-options": "nosniff"}
"""Headers of a text that no browser may read as a page."""
SECURITY_SCHEMES: Mapping[str, Mapping[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, see `ratchet keys`."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
}
"""How a request names its caller. Every operation lists the scope that it takes."""
_FASTAPIS = "Validation Error"
"""FastAPI adds a 422 with this description to every route with parameters, even if none of them can be wrong."""
_FASTAPI_SCHEMAS = frozenset({"HTTPValidationError", "ValidationError"})
"""The shape of that 422."""

Handler = Callable[..., Awaitable[Any]]
"""Returns a struct, or a status and a struct; its parameters are FastAPI's, and at most one struct: the body."""


@dataclass(frozen=True, slots=True)
class Body:
    """How a body is read that its struct describes in part only, and the schemas that describe all of it."""

    read: Callable[[bytes], Any]
    """Returns the struct; raises an error of the tree."""
    schemas: Callable[[], Mapping[str, Schema]]
    """They replace the struct's schemas in the document."""


class ControlApi:
    """The routes, and `app`: the ASGI application that also serves its own document."""

    def __init__(
        self,
        title: str,
        description: str,
        errors: Mapping[int, str],
        bodies: Mapping[type[msgspec.Struct], Body] | None = None,
    ) -> None:
        """`errors`: those that every route may answer, by status. `bodies`: the structs that have a `Body`."""
        self.app = FastAPI(title=title, version="1", description=description)
        self._errors = errors
        self._bodies = bodies or {}
        self._kinds: dict[type[msgspec.Struct], None] = {ErrorOut: None}
        self._document: dict[str, Any] | None = None
        self._described = self.app.openapi
        self.app.openapi = self.document
        for kind, answer in _ERRORS.items():
            self.app.add_exception_handler(kind, answer)

    def document(self) -> dict[str, Any]:
        """The OpenAPI document; the first call makes it."""
        if self._document is not None:
            return self._document
        document = self._described()
        schemas = document.get("components", {}).get("schemas", {}) | components([*self._kinds])
        for body in self._bodies.values():
            schemas |= body.schemas()
        answers = [one["responses"] for members in document["paths"].values() for one in members.values()]
        for by_status in answers:
            if by_status.get("422", {}).get("description") == _FASTAPIS:
                del by_status["422"]
        document["components"] = {
            "responses": _shared_errors(answers),
            "schemas": {name: schemas[name] for name in sorted(schemas.keys() - _FASTAPI_SCHEMAS)},
            "securitySchemes": SECURITY_SCHEMES,
        }
        self._document = document
        return document

    def route(
        self,
        verb: str,
        path: str,
        handler: Handler,
        *,
        scope: KeyScope | None,
        answers: Mapping[int, str] | None = None,
        errors: Mapping[int, str] | None = None,
    ) -> None:
        """Serve `path` with `handler`, for callers whose key has `scope`; None: for every caller that is known.

        `answers`: by status; the first is that of a handler which returns no status of its own; by default 200.
        `errors`: by status, besides those of every route.
        """
        signature = inspect.signature(handler, eval_str=True)
        returned = signature.return_annotation
        kind: type[msgspec.Struct] = get_args(returned)[1] if get_origin(returned) is tuple else returned
        body = next((one.annotation for one in signature.parameters.values() if _is_struct(one)), None)
        self._kinds |= dict.fromkeys([kind, body] if body and body not in self._bodies else [kind])
        good = answers or {200: inspect.cleandoc(kind.__doc__ or "")}
        refused = {**self._errors, **REFUSED, **(CHANGING if verb == "POST" else {}), **(errors or {})}
        self.app.add_api_route(
            path,
            _answering(handler, _with_body(signature, self._reader(body)), next(iter(good))),
            methods=[verb],
            status_code=next(iter(good)),
            tags=[path.removeprefix("/v1/").strip("/").partition("/")[0]],
            dependencies=[Depends(_requiring(scope))],
            response_model=None,
            responses={
                **{code: _response(text, ErrorOut) for code, text in sorted(refused.items())},
                **{code: _response(text, kind) for code, text in good.items()},
            },
            openapi_extra={
                "security": [{name: [str(scope)] if scope else []} for name in SECURITY_SCHEMES],
                **({"requestBody": {"required": True, "content": _content(body)}} if body else {}),
            },
        )

    def stream(
        self,
        path: str,
        handler: Callable[..., Awaitable[AsyncGenerator[bytes, None]]],
        *,
        scope: KeyScope,
        events: Mapping[str, type[msgspec.Struct]],
    ) -> None:
        """Serve server-sent events: `handler` returns them as they are sent, or raises. `events`: what is in the `data`
        of each, by its name. The stream ends before the first event that its caller's key opens no longer."""
        self._kinds |= dict.fromkeys(events.values())

        async def answering(**values: Any) -> Response:
            return _Events(await handler(**values), scope)

        content = {EVENTS: {"schema": {"oneOf": [reference(kind) for kind in events.values()]}}}
        described = {"description": f"Events: {', '.join(events)}.", "content": content}
        self._serve(path, _like(handler, answering), scope, {}, described)

    def text_route(
        self, path: str, handler: Handler, *, scope: KeyScope, errors: Mapping[int, str] | None = None
    ) -> None:
        """Serve GET `path` with a handler that returns a text which someone else wrote: to be saved, never a page."""

        async def answering(**values: Any) -> Response:
            text: str = await handler(**values)
            return PlainTextResponse(text.encode(errors="replace"), headers=_SAVED)

        described = {"description": "The text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
        self._serve(path, _like(handler, answering), scope, errors or {}, described)

    def _serve(
        self, path: str, answering: Handler, scope: KeyScope, errors: Mapping[int, str], described: Mapping[str, Any]
    ) -> None:
        """Serve GET `path` with answers that are no struct."""
        refused = {**self._errors, **REFUSED, **errors}
        self.app.add_api_route(
            path,
            answering,
            methods=["GET"],
            tags=[path.removeprefix("/v1/").strip("/").partition("/")[0]],
            dependencies=[Depends(_requiring(scope))],
            response_model=None,
            response_class=Response,
            responses={
                **{code: _response(text, ErrorOut) for code, text in sorted(refused.items())},
                200: {**described},
            },
            openapi_extra={"security": [{name: [str(scope)]} for name in SECURITY_SCHEMES]},
        )

    def _reader(self, kind: type[msgspec.Struct] | None) -> Callable[[bytes], Any] | None:
        if kind is None:
            return None
        return self._bodies[kind].read if kind in self._bodies else _reader(kind)


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


def _is_struct(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _with_body(signature: inspect.Signature, reader: Callable[[bytes], Any] | None) -> inspect.Signature:
    """The signature as FastAPI takes it: dependencies read what FastAPI has no model for, the body and the caller."""

    async def read(request: Request) -> Any:
        return reader(await request.body()) if reader is not None else None

    def replaced(parameter: inspect.Parameter) -> inspect.Parameter:
        if parameter.annotation is Caller:
            return parameter.replace(annotation=Annotated[Any, Depends(_caller)])
        return parameter.replace(annotation=Annotated[Any, Depends(read)]) if _is_struct(parameter) else parameter

    parameters = [replaced(one) for one in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=Any)


async def _caller(request: Request) -> Any:
    return caller_of(request.scope)


async def _unauthenticated() -> Caller:
    return UNAUTHENTICATED


class _Events(StreamingResponse):
    """Asks before each event whether its caller may still read it."""

    def __init__(self, events: AsyncGenerator[bytes, None], needed: KeyScope) -> None:
        super().__init__(events, media_type=EVENTS)
        self._events, self._needed = events, needed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body_iterator = self._allowed(scope.get(IDENTIFY, _unauthenticated))
        await super().__call__(scope, receive, send)

    async def _allowed(self, identify: Callable[[], Awaitable[Caller]]) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._events) as events:
            async for event in events:
                try:
                    (await identify()).require(self._needed)
                except RatchetError:
                    return  # its page asks for another stream, and reads why
                yield event


def _requiring(scope: KeyScope | None) -> Callable[[Request], Awaitable[None]]:
    """Raises `Forbidden` before FastAPI looks at a parameter or a body."""

    async def require(request: Request) -> None:
        caller = caller_of(request.scope)
        if scope is not None:
            caller.require(scope)
        elif caller == UNAUTHENTICATED:
            raise Forbidden("nothing has authenticated this request")

    return require


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


def _answering(handler: Handler, signature: inspect.Signature, status: int) -> Handler:
    async def answering(**values: Any) -> Response:
        returned = await handler(**values)
        code, answer = cast("tuple[int, Any]", returned) if isinstance(returned, tuple) else (status, returned)
        return Response(msgspec.json.encode(answer), code, media_type=JSON)

    answering.__name__, answering.__doc__ = handler.__name__, handler.__doc__
    answering.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]  `inspect` reads it first
    return answering


def _like(handler: Callable[..., Any], answering: Handler) -> Handler:
    """`answering` with the name, the words and the parameters of `handler`."""
    signature = inspect.signature(handler, eval_str=True).replace(return_annotation=Any)
    answering.__name__, answering.__doc__ = handler.__name__, handler.__doc__
    answering.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]  `inspect` reads it first
    return answering


def _response(text: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"description": text, "content": _content(kind)}


def _content(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {JSON: {"schema": reference(kind)}}


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RatchetError)  # noqa: S101 - see `_ERRORS`
    return _problem(http_error(error))


async def _invalid(_: Request, error: Exception) -> Response:
    """One line that names every parameter that is wrong."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - see `_ERRORS`
    places = [(".".join(str(part) for part in each["loc"][1:]), each["msg"]) for each in error.errors()]
    line = "; ".join(f"{place}: {reason}" for place, reason in places)
    return _problem(HttpError(422, line, param=places[0][0]))


async def _no_route(_: Request, error: Exception) -> Response:
    """No such path, or another method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - see `_ERRORS`
    return _problem(HttpError(error.status_code, error.detail), error.headers)


async def _broken(_: Request, __: Exception) -> Response:
    """The server logs the error itself."""
    return _problem(internal_error())


_ERRORS = {RatchetError: _refused, RequestValidationError: _invalid, HTTPException: _no_route, Exception: _broken}


def _problem(problem: HttpError, headers: Mapping[str, str] | None = None) -> Response:
    own = {name.decode(): value.decode() for name, value in problem.headers}
    return Response(problem.json, problem.status, {**own, **(headers or {})}, JSON)
