"""The HTTP route of the loop at a glance."""

from __future__ import annotations

from ratchet.console.loop import Loop
from ratchet.core.contract.http.console import LoopOut
from ratchet.core.rules.access import KeyScope
from ratchet.core.service.control_api import ControlApi


def add_routes(api: ControlApi, loop: Loop) -> None:
    """Serve `/v1/loop`."""

    async def read_loop() -> LoopOut:
        """The whole loop at a glance: figures of the last hour, streams, services, roles, and what needs a person."""
        return await loop.current()

    api.route("GET", "/v1/loop", read_loop, scope=KeyScope.VIEW)
