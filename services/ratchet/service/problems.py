"""Errors over HTTP: which status an error of the tree is answered with, and the one body that all servers use."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ratchet.contract.http.answers import ErrorOut, ErrorPart
from ratchet.errors import (
    BadRequest,
    Conflict,
    ContractError,
    DigestMismatch,
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
    (NotFound, 404),
    (WrongState, 409),
    (Conflict, 409),
    (Rejected, 422),
    (DigestMismatch, 422),
    (Unavailable, 503),
    (Unreadable, 503),
)
"""The first class that an error belongs to decides; any other error is 500."""


class HttpError(RatchetError):
    """An answer with an error status that only HTTP knows: no such path, no key, too large, too many."""

    def __init__(
        self, status: int, message: str, *, kind: str | None = None, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")

    @property
    def body(self) -> ErrorOut:
        """The shape that OpenAI's clients understand."""
        return ErrorOut(error=ErrorPart(message=str(self), type=self.kind, param=self.param, code=self.code))

    @property
    def json(self) -> bytes:
        """The body as it is sent."""
        return msgspec.json.encode(self.body)


def http_error(error: RatchetError) -> HttpError:
    """The answer that an error stands for."""
    if isinstance(error, HttpError):
        return error
    status = next((status for kind, status in STATUS_OF if isinstance(error, kind)), 500)
    return HttpError(status, str(error), code=error.code, param=error.param)


def internal_error() -> HttpError:
    """The answer to a request that met a bug, which the log describes."""
    return HttpError(500, "internal error; the service's log has the details")
