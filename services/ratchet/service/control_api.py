"""The control APIs as FastAPI applications: every error in the one shape."""

from __future__ import annotations

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ratchet.errors import RatchetError
from ratchet.service.problems import HttpError, http_error, internal_error


def answer_errors(app: Starlette) -> None:
    """Have every error of `app` answered in the one shape."""
    app.add_exception_handler(RatchetError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _broken)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RatchetError)  # noqa: S101 - what it is registered for
    return _answer(http_error(error))


async def _invalid(_: Request, error: Exception) -> Response:
    """One line that names every parameter that is wrong."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - what it is registered for
    places = [(".".join(str(part) for part in each["loc"][1:]), each["msg"]) for each in error.errors()]
    line = "; ".join(f"{place or 'body'}: {reason}" for place, reason in places)
    return _answer(HttpError(422, line, param=places[0][0] or None))


async def _no_route(_: Request, error: Exception) -> Response:
    """No such path, or another method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    return _answer(HttpError(error.status_code, error.detail))


async def _broken(_: Request, __: Exception) -> Response:
    """The server logs the error itself."""
    return _answer(internal_error())


def _answer(problem: HttpError) -> Response:
    return Response(problem.json, problem.status, media_type="application/json")
