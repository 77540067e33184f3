"""Preferences of a file that a person chooses, taken in as `ratchet preferences add` does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ratchet.core.contract import Message
from ratchet.core.contract.http.console import LeftOutLine, PairsFileIn, PairsFileOut
from ratchet.core.preferences.adding import add_lines
from ratchet.core.preferences.publishing import Known, Sink
from ratchet.core.preferences.records import lines_of

REMEMBERED = 10_000
"""Preferences of late that stay in memory: ClickHouse has one some seconds after it was published."""


class PairsFiles:
    """Publishes what is new, and tells it from what is stored or on its way."""

    def __init__(self, sink: Sink, stored: Known) -> None:
        self._sink = sink
        self._stored = stored
        self._sent = deque[str](maxlen=REMEMBERED)
        self._adding = asyncio.Lock()

    async def add(self, file: PairsFileIn) -> PairsFileOut:
        """Take the lines in. The same ones twice change nothing."""
        async with self._adding:  # else two clicks at once both count what is new
            report = await add_lines(self, self._known, lines_of(file.lines.encode()), file.role)
        return PairsFileOut(
            records=report.records,
            added=report.done.published,
            present=report.done.present,
            left_out=[LeftOutLine(line=bad.line, reason=bad.reason) for bad in report.bad],
        )

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """See `Sink`."""
        await self._sink.publish_all(messages)
        self._sent.extend(message.event_id for message in messages)

    async def _known(self, ids: Sequence[str]) -> frozenset[str]:
        return await self._stored(ids) | set(self._sent).intersection(ids)
