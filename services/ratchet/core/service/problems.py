"""Errors over HTTP: the status of each error of the tree, the error that each status stands for, and the one body.

A server answers an error with its status and code, and a client raises the error that they name. Errors that a caller
cannot act on come back as their nearest kin: a broken contract as `BadRequest`, a faulty service as `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

import msgspec

from ratchet.core.contract.http.answers import ErrorOut, ErrorPart
from ratchet.core.errors import (
    BadRequest,
    Conflict,
    ContractError,
    DigestMismatch,
    Forbidden,
    NotFound,
    RatchetError,
    Rejected,
    Unavailable,
    Unreadable,
    WrongState,
)

STATUS_OF: Sequence[tuple[type[RatchetError], int]] = (
    (BadRequest, 400),
    (ContractError, 400),
    (Forbidden, 403),
    (NotFound, 404),
    (WrongState, 409),
    (Conflict, 409),
    (Rejected, 422),
    (DigestMismatch, 422),
    (Unavailable, 503),
    (Unreadable, 503),
)
"""The first class that an error belongs to decides; any other error is 500. A status stands for the class of its own
that has the answer's code, else for the first of its classes: the others take no code but their own."""
RETRYABLE = frozenset({408, 425, 429})
"""Besides all statuses from 500 on, those that say "later" and nothing about the request."""


class HttpError(RatchetError):
    """An error that only HTTP knows, by its status: no such path, no key, too large, too many."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """`retry_after_s`: when a client should try again."""
        super().__init__(message, param=param, code=code)
        self.status = status
        headers = [(b"www-authenticate", b"Bearer")] if status == HTTPStatus.UNAUTHORIZED else []
        if retry_after_s is not None:
            headers.append((b"retry-after", str(retry_after_s).encode()))
        self.headers: Sequence[tuple[bytes, bytes]] = headers
        """Headers of the answer beside the body's."""
        otherwise = "invalid_request_error" if status < 500 else "server_error"
        self.kind = kind or ("permission_error" if status == HTTPStatus.FORBIDDEN else otherwise)

    @property
    def body(self) -> ErrorOut:
        """The shape that OpenAI's clients understand."""
        return ErrorOut(error=ErrorPart(message=str(self), type=self.kind, param=self.param, code=self.code))

    @property
    def json(self) -> bytes:
        """The body as it is sent."""
        return msgspec.json.encode(self.body)


ErrorJson = Callable[[str, HttpError], bytes]
"""The body of an error, as clients of the path understand it."""


def as_openai(_: str, error: HttpError) -> bytes:
    """The body of an error on every path that has no shape of its own."""
    return error.json


def not_allowed(method: str, path: str, allowed: Sequence[str]) -> HttpError:
    """The refusal of a method that the path does not have; `allowed`: those that it has."""
    error = HttpError(405, f"{method} is not allowed on {path}")
    error.headers = [(b"allow", ", ".join(sorted(allowed)).encode())]
    return error


def http_error(error: RatchetError) -> HttpError:
    """The answer to a request that raised `error`."""
    if isinstance(error, HttpError):
        return error
    status = next((status for kind, status in STATUS_OF if isinstance(error, kind)), 500)
    return HttpError(status, str(error), code=error.code, param=error.param)


def error_class(status: int, code: str | None) -> type[RatchetError]:
    """The error that an answer with this status and code stands for."""
    kinds = [kind for kind, listed in STATUS_OF if listed == status]
    if not kinds:
        return Rejected if 400 <= status < 500 and status not in RETRYABLE else Unavailable
    return next((kind for kind in kinds if code is not None and kind.code == code), kinds[0])


def internal_error() -> HttpError:
    """The answer to a request that met a bug; the log describes the bug."""
    return HttpError(500, "internal error; the service's log has the details")
