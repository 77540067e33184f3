"""Who sends a request, in front of any ASGI application: the key that the request holds becomes its `Caller`.

A key comes as `Authorization: Bearer <key>` (the scheme in any case, RFC 9110), as `x-api-key`, `api-key` or
`x-goog-api-key`: these are the headers of OpenAI's, Anthropic's, Azure's and Google's clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from ratchet.core.contract.http.console import SessionOut
from ratchet.core.errors import RatchetError
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.service.asgi import (
    CALLER,
    IDENTIFY,
    AsgiApp,
    Headers,
    Receive,
    Request,
    Scope,
    Send,
    problem_response,
    send_response,
)
from ratchet.core.service.problems import HttpError, http_error

LONGEST_KEY = 512
"""No key is longer: more is not even hashed."""
_PLAIN = (b"x-api-key", b"api-key", b"x-goog-api-key")


class Authentication:
    """Refuses requests whose caller is unknown before it reads a body, and names the caller of all others."""

    def __init__(self, app: AsgiApp, identify: Callable[[Headers], Awaitable[Caller]]) -> None:
        """`identify`: the caller of a request, by its headers; raises an error of the tree, as `KnownKeys` does."""
        self._app = app
        self._identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point: 401 without a known key, 503 while the keys are not known."""
        if scope["type"] == "http":
            try:
                scope[CALLER] = await self._identify(scope["headers"])
                scope[IDENTIFY] = partial(self._identify, scope["headers"])
            except RatchetError as error:
                await send_response(send, problem_response(http_error(error)))
                return
        await self._app(scope, receive, send)


def presented_key(headers: Headers) -> bytes | None:
    """The key that a request holds, None for none. Raises `HttpError` (401) for a header that holds no key, and for
    several keys that differ: a proxy in front may have judged another one.
    """
    keys = {_bearer(value) for name, value in headers if name == b"authorization"}
    keys |= {value.strip(b" \t") for name, value in headers if name in _PLAIN}
    keys.discard(b"")
    if len(keys) > 1:
        raise unauthenticated("the request holds several API keys that differ: send one")
    return keys.pop() if keys else None


def is_token(key: bytes) -> bool:
    """Whether what a request presents, and what is no key that is known, is a token of an issuer (a JWT)."""
    return key.count(b".") == 2


def own_key(request: Request) -> dict[str, str | bytes]:
    """The header with the key that a request's caller was authenticated by, to pass the request on with; empty where
    no key is asked for."""
    key = presented_key([*request.headers.items()]) if request.caller.key_id is not None else None
    return {"authorization": b"Bearer " + key} if key else {}


def session_of(caller: Caller) -> SessionOut:
    """Who a caller is, and what its key allows for some role."""
    return SessionOut(
        key_id=caller.key_id,
        name=caller.name,
        view=caller.allows(KeyScope.VIEW),
        annotate=caller.allows(KeyScope.ANNOTATE),
        train=caller.allows(KeyScope.TRAIN),
        operate=caller.allows(KeyScope.OPERATE),
        infer=caller.allows(KeyScope.INFER),
        scopes=sorted(caller.scopes),
    )


def unauthenticated(message: str) -> HttpError:
    """The refusal of a request whose caller is unknown."""
    return HttpError(401, message, kind="authentication_error", code="invalid_api_key")


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.strip(b" \t").partition(b" ")
    if value and scheme.lower() != b"bearer":
        raise unauthenticated("the header `authorization` holds no bearer key: send `Authorization: Bearer <key>`")
    return key.strip(b" \t")
