"""Gateway processes that know of each other by their notes alone, which a test hands on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ratchet.core.contract import GatewayNotes, JsonObject, encode, named_id
from ratchet.gateway.domain.identity import Asked, Identity, Names, Recognised
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.peer_sync import Memory, PeerSync
from ratchet.gateway.turn_order import TurnOrder


class Process:
    """What one process remembers, and what it would send."""

    def __init__(self, world: Processes, skew_s: float) -> None:
        self.arms = Arms(1_000_000)
        self.notes = PeerUpdates(1_000_000)
        self.notes.listen(lambda: None, lambda: None, lambda: None)
        now_s = lambda: world.now_s + skew_s  # noqa: E731 - its clock
        self.identity = Identity(1 << 30, world.new_id, now_s, updates=self.notes)
        memory = Memory(self.identity, self.arms, self.notes.calls, TurnOrder(), lambda _: None)
        self._peer_sync = PeerSync(asyncio.Event().wait, self.notes, memory, now_s)  # type: ignore[arg-type]
        self._outbox: list[GatewayNotes] = []
        self._heard: dict[Process, int] = {}
        self._turns = 0

    def ask(
        self, messages: Sequence[JsonObject], *, scope: str = "key", names: Names | None = None, **members: Any
    ) -> Recognised:
        """A call that begins, by what this process knows."""
        asked = Asked(scope, names or Names(), members, repr(messages).encode(), lambda: messages)
        call = self.identity.look_up(asked)
        self.identity.begin(asked, call)
        return call

    def answer(self, call: Recognised, messages: Sequence[JsonObject], answer: JsonObject) -> None:
        """The call is answered."""
        self._turns += 1
        self.identity.answered(call, named_id("turn", self.notes.process, self._turns), lambda: messages, answer)

    def sent(self) -> GatewayNotes:
        """The notes since the last ones."""
        notes = self.notes.take() or self.notes.heartbeat()
        self._outbox.append(notes)
        return notes

    def hear(self, other: Process) -> None:
        """Take over everything that another process has for it."""
        other.sent()
        for notes in other._outbox[self._heard.get(other, 0) :]:
            self.take(encode(notes))
        self._heard[other] = len(other._outbox)

    def take(self, body: bytes) -> None:
        """A message of the notes' subject comes."""
        self._peer_sync.take(body)


class Processes:
    """Several of them, with one time and clocks that differ."""

    def __init__(self, number: int, *, skew_s: float = 0.0) -> None:
        self.now_s = 1_000_000.0
        self._made = 0
        self.each = [Process(self, skew_s * place) for place in range(number)]

    def new_id(self) -> str:
        """The id of a trajectory."""
        self._made += 1
        return named_id("trajectory", self._made)
