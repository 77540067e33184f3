"""The HTTP route of live news."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ratchet.console.events import Events
from ratchet.core.contract.http.console import HintOut, LoopOut
from ratchet.core.rules.access import KeyScope
from ratchet.core.service.control_api import ControlApi


def add_routes(api: ControlApi, news: Events) -> None:
    """Serve `/v1/events`."""

    async def events() -> AsyncGenerator[bytes, None]:
        """Server-sent events: `loop` every two seconds, `hint` when something changed. The stream ends after five
        minutes: ask again."""
        return news.listen()

    api.stream("/v1/events", events, scope=KeyScope.VIEW, events={"loop": LoopOut, "hint": HintOut})
