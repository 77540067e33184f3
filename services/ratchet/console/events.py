"""Live news for open pages: the loop every two seconds, and hints, read once for all who listen, and for none.

A listener that takes what it is sent too slowly gets the newest picture of the loop, and the newest hints.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ratchet.bus.tasks import end
from ratchet.console.domain.hints import Hints
from ratchet.console.domain.visible import is_visible, loop_of
from ratchet.console.metrics import LISTENERS
from ratchet.core.contract.http.console import HintOut, LoopOut
from ratchet.core.errors import Unavailable
from ratchet.core.rules.access import ALL_ROLES, RoleSet
from ratchet.core.service.runtime import Periodic

LOOP_S = 2.0
HINTS_S = 1.0
"""Changes within this time are one hint each, however many messages they made."""
HEARTBEAT_S = 15.0
"""A listener that has nothing to hear hears this often that the console is there."""
LIFETIME_S = 300.0
"""A stream ends after this long, and its page asks for another."""
WAITING = 100
"""Hints that wait for one listener; older ones give way."""
MOST_LISTENERS = 500
PER_KEY = 8
"""Pages that listen with one key; the one that has listened longest gives way, and asks for another stream."""
BEGIN = b": ratchet\n\n"
HEARTBEAT = b": still here\n\n"

Follow = Callable[[Callable[[HintOut], None]], Coroutine[Any, Any, None]]
"""Hands on hints until it is cancelled."""


class Listener:
    """What waits to be sent to one page: bounded, whatever the page takes."""

    def __init__(self, roles: RoleSet = ALL_ROLES) -> None:
        """`roles`: what it may hear of."""
        self.roles = roles
        self._loop: bytes | None = None
        self._hints: deque[bytes] = deque(maxlen=WAITING)
        self._news = asyncio.Event()
        self._over = False

    def show(self, loop: bytes) -> None:
        """A newer picture takes the place of one that waits."""
        self._loop = loop
        self._news.set()

    def hint(self, hint: bytes) -> None:
        """One more hint."""
        self._hints.append(hint)
        self._news.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._news.set()

    async def next(self, wait_s: float) -> bytes | None:
        """Everything that waits; empty when nothing came for `wait_s`, None at the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        self._news.clear()
        if self._over:
            return None
        parts = [*([self._loop] if self._loop is not None else []), *self._hints]
        self._loop = None
        self._hints.clear()
        return b"".join(parts)


@dataclass(slots=True)
class Events:
    """A component: reads while a page listens."""

    loop: Callable[[], Awaitable[LoopOut]]
    follow: Follow
    monotonic: Callable[[], float] = time.monotonic
    loop_s: float = LOOP_S
    hints_s: float = HINTS_S
    _listeners: dict[Listener, str | None] = field(default_factory=dict[Listener, str | None], init=False)
    """With the keys that they came with; first those that have listened longest."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when a listener comes or goes, and at the end."""
    _stopping: bool = field(default=False, init=False)
    _hints: Hints = field(default_factory=Hints, init=False)
    _shown: LoopOut | None = field(default=None, init=False)
    """The newest picture, while a page listens."""

    def listen(self, key_id: str | None = None, roles: RoleSet = ALL_ROLES) -> AsyncGenerator[bytes, None]:
        """The events about these roles for one page, which came with a key. Raises `Unavailable` at once where too many
        listen, and at the end."""
        if self._stopping or (len(self._listeners) >= MOST_LISTENERS and not self._of_key(key_id)):
            raise Unavailable("the console stops" if self._stopping else "too many pages listen; try again later")
        return self._events(Listener(roles), key_id)

    def _of_key(self, key_id: str | None) -> list[Listener]:
        """Those that give way to another one of the same key, if there are too many; without keys there are none."""
        own = [listener for listener, its in self._listeners.items() if key_id is not None and its == key_id]
        return own[: len(own) - PER_KEY + 1] if len(own) >= PER_KEY else []

    async def _events(self, listener: Listener, key_id: str | None) -> AsyncGenerator[bytes, None]:
        for oldest in self._of_key(key_id):
            del self._listeners[oldest]
            oldest.end()
        self._listeners[listener] = key_id
        LISTENERS.set(len(self._listeners))
        if self._shown is not None:
            listener.show(_event("loop", loop_of(self._shown, listener.roles)))
        self._changed.set()
        try:
            until = self.monotonic() + LIFETIME_S
            yield BEGIN
            while self.monotonic() < until:
                events = await listener.next(HEARTBEAT_S)
                if events is None:
                    return
                yield events or HEARTBEAT
        finally:
            self._listeners.pop(listener, None)
            LISTENERS.set(len(self._listeners))
            self._changed.set()

    async def run(self) -> None:
        """Wait for listeners, and read for them, until stopped."""
        while await self._until(lambda: bool(self._listeners)):
            tasks = [
                asyncio.create_task(Periodic(self.loop_s, self._send_loop, "loop").run()),
                asyncio.create_task(Periodic(self.hints_s, self._send_hints, "hints").run()),
                asyncio.create_task(self.follow(self._hints.add)),
            ]
            try:
                await self._until(lambda: not self._listeners)
            finally:
                await end(*tasks)
                self._shown = None
                self._hints.take()

    async def stop(self) -> None:
        """End every stream, and return from `run`."""
        self._stopping = True
        for listener in self._listeners:
            listener.end()
        self._changed.set()

    async def _until(self, holds: Callable[[], bool]) -> bool:
        """Wait until the condition holds; False at the end."""
        while not self._stopping:
            if holds():
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    async def _send_loop(self) -> None:
        self._shown = loop = await self.loop()
        by_roles = {
            roles: _event("loop", loop_of(loop, roles)) for roles in {listener.roles for listener in self._listeners}
        }
        for listener in self._listeners:
            listener.show(by_roles[listener.roles])

    async def _send_hints(self) -> None:
        for hint in self._hints.take():
            event = _event("hint", hint)
            for listener in self._listeners:
                if is_visible(hint.role, listener.roles):
                    listener.hint(event)


def _event(name: str, value: msgspec.Struct) -> bytes:
    """JSON has no line break of its own, so it is one `data` line."""
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"
