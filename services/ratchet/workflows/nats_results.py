"""Publishes what came of workflows, redacted as clients redact; nothing of whom who has opted out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.bus.connection import Bus
from ratchet.core.contract import Message
from ratchet.core.contract.erasure import AGENT
from ratchet.core.rules.opt_outs import refs_of
from ratchet.core.rules.redaction import redact_message
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.workflows.domain import results


@dataclass(frozen=True)
class Results:
    """Raises `Unavailable` while the broker is away, and `Rejected` for what cannot be redacted."""

    bus: Bus
    opt_outs: KnownOptOuts

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages; again after a fault: they have the same ids."""
        await self.opt_outs.is_read.wait()
        for message in messages:
            refs = [*refs_of(message), (AGENT, results.AGENT)]
            if not self.opt_outs.covers(getattr(message, "role", ""), refs):
                redacted, _ = await asyncio.to_thread(redact_message, message)
                await self.bus.publish(redacted)
