"""The base of all answers, and the one shape of an error."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""RFC 3339, with its time zone."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of a service. Every member is sent, also those that are null. A reader ignores unknown members."""


class ErrorPart(Answer, frozen=True, kw_only=True):
    """An error in OpenAI's shape."""

    message: str
    """One line for people: what happened, why, and what to do."""
    type: str
    """The kind of error: `invalid_request_error`, `authentication_error`, `rate_limit_error`, `server_error`, ..."""
    param: str | None = None
    """The part of the request that is to blame, if one is."""
    code: str | None = None
    """The error's name for programs, if it has one."""


class ErrorOut(Answer, frozen=True, kw_only=True):
    """Every error of every service."""

    error: ErrorPart
