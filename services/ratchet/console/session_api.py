"""The HTTP route of the caller: who it is, and what its key allows."""

from __future__ import annotations

from ratchet.core.contract.http.console import SessionOut
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.service.control_api import ControlApi


def add_routes(api: ControlApi) -> None:
    """Serve `/v1/session`, to any caller that is known."""
    api.route("GET", "/v1/session", session, scope=None)


async def session(caller: Caller) -> SessionOut:
    """Who the console's user is, and what the key allows."""
    return SessionOut(
        key_id=caller.key_id,
        name=caller.name,
        view=caller.allows(KeyScope.VIEW),
        annotate=caller.allows(KeyScope.ANNOTATE),
        train=caller.allows(KeyScope.TRAIN),
        operate=caller.allows(KeyScope.OPERATE),
        infer=caller.allows(KeyScope.INFER),
    )
