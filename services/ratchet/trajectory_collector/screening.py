"""What reaches the streams unredacted is redacted here, before anything of it is stored elsewhere, or refused.

Clients and gateway take secrets out before they publish, and say so in the header `ratchet-redacted`. Other programs
may not: the stream then keeps what they sent until its age, and no row, no trajectory and no dead letter does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ratchet.bus.consumer import BatchHandler, Dead, Outcome
from ratchet.bus.contracts import Contracts
from ratchet.bus.envelope import REDACTED_BY
from ratchet.bus.received import Received
from ratchet.core.contract import Message, Turn, encode
from ratchet.core.errors import Rejected
from ratchet.core.rules.capture import Reason
from ratchet.core.rules.recorded import without_tokens
from ratchet.core.rules.redaction import redact_message
from ratchet.trajectory_collector import metrics

Batch = Sequence[Received[Any]]
"""`Any` because one subscription carries several message types."""
REFUSED = "publish it through a client or the gateway, which redact, or let the collector redact it"
TOKENS = ("prompt_token_ids", "output_token_ids", "behavior_logprobs")
"""Members of a turn that hold numbers alone, by the thousand."""


@dataclass(frozen=True)
class Screen:
    """Holds messages of topics that are `redacted` to the rules of this process."""

    contracts: Contracts
    rules: str
    """Digest of the rules here: what was redacted by the same is taken as it is."""
    refuse: bool = False
    """Whether what names no rules at all becomes a dead letter."""

    def before(self, handler: BatchHandler) -> BatchHandler:
        """A handler that gets messages without secrets alone."""

        async def screened(batch: Batch) -> Sequence[Outcome]:
            return await self.handle(batch, handler)

        return screened

    async def handle(self, batch: Batch, handler: Callable[[Batch], Awaitable[Sequence[Outcome]]]) -> Sequence[Outcome]:
        """The outcomes of a batch: those of the handler for what it may see, the others dead."""
        seen = [await self.screened(received) for received in batch]
        passed = [received for received in seen if isinstance(received, Received)]
        outcomes = iter(await handler(passed) if passed else ())
        return [next(outcomes) if isinstance(received, Received) else received for received in seen]

    async def screened(self, received: Received[Message]) -> Received[Message] | Dead:
        """The message as it may be stored, or why it may not."""
        topic = received.message.TOPIC
        by = received.headers.get(REDACTED_BY)
        if by == self.rules or not self.contracts.topics[topic].redacted:
            return received
        metrics.UNREDACTED.labels(topic, "other rules" if by else "none").inc()
        if self.refuse and not by:
            return Dead("unredacted", f"names no rules by which it was redacted: {REFUSED}")
        try:
            return await asyncio.to_thread(redacted_copy, received)
        except Rejected as error:
            return Dead("unredacted", str(error))


def redacted_copy(received: Received[Message]) -> Received[Message]:
    """The message without secrets; itself where it holds none. Raises `Rejected` where it cannot be searched."""
    message = received.message
    tokens = {name: getattr(message, name) for name in TOKENS} if isinstance(message, Turn) else {}
    safe, counts = redact_message(msgspec.structs.replace(message, **dict.fromkeys(tokens)))
    if not counts:
        return received
    if isinstance(safe, Turn):  # its tokens would decode to the secret
        safe = without_tokens(safe, Reason.REDACTED, counts)
    return replace(received, message=safe, body=encode(safe))
