"""Callers in front of an application, for tests of what lies behind the authentication."""

from __future__ import annotations

from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.asgi import AsgiApp, Headers
from ratchet.core.service.authentication import Authentication


def called_by(app: AsgiApp, caller: Caller = ANYONE) -> Authentication:
    """The application behind an authentication that takes every request for the caller's."""

    async def identify(_: Headers) -> Caller:
        return caller

    return Authentication(app, identify)
