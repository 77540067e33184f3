"""What a bus looks after beside the work of its program: its streams, and what a restored broker has lost.

The broker may come back as an older copy of itself, or without its data, and a person may remove a stream. So

- a bus that has made the streams and buckets makes those again that are gone;
- a publisher holds for some minutes what a stream has acknowledged (`Acknowledged`). It asks for the stream whenever
  the connection comes back, when an acknowledgement counts backwards, and now and then. What a stream made anew, or an
  older copy, may lack it publishes again; the events' ids make that harmless.

People get a message (`Contracts.report`), metrics and the log.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from prometheus_client import Counter

from ratchet.bus.acknowledged import Acknowledged
from ratchet.bus.envelope import Record
from ratchet.bus.failures import Notice, failure
from ratchet.bus.message import Message
from ratchet.bus.tasks import end, expire
from ratchet.core.errors import BusUnavailable, RatchetError, Rejected

if TYPE_CHECKING:
    from ratchet.bus.connection import Bus
    from ratchet.bus.publisher import Publisher

log = structlog.get_logger()

LOOK_S = 5.0
"""How often it is looked whether the streams are there."""
CLOSE_S = 2.0
"""Longest last look of a program that closes."""
ASK_S = 15.0
"""How often a publisher asks for its stream while nothing else makes it."""

MADE_AGAIN = Counter("ratchet_streams_made_again_total", "Streams and buckets that were gone.", ["stream"])
AGAIN = Counter("ratchet_published_again_total", "Messages that the broker had acknowledged and lost.", ["stream"])


class Upkeep:
    """The task beside a bus: begins with the first thing that there is to look after."""

    def __init__(self, bus: Bus) -> None:
        self.acknowledged = Acknowledged()
        self._makes = False
        """Whether streams and buckets that are gone are made again."""
        self._bus = bus
        self._woken = asyncio.Event()
        self._due = False
        """Whether the next look is at everything."""
        self._task: asyncio.Task[None] | None = None
        self._looking: asyncio.Timeout | None = None
        self._asked_at = 0.0
        self._in_memory = {stream.name for stream in bus.contracts.streams.values() if stream.storage == "memory"}
        """A broker that is started again comes without these."""
        self._again: list[Record] = []
        self._unreported: list[Message] = []

    def begin(self) -> None:
        """Look after things from now on."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def make_from_now_on(self) -> None:
        """Make streams and buckets again that are gone."""
        self._makes = True
        for name in self._bus.stream_names - self._in_memory:
            MADE_AGAIN.labels(name)  # 0 from now on: a rise shows
        self.begin()

    def wake(self) -> None:
        """Look now: a stream counts backwards."""
        self._due = True
        self._woken.set()

    def reconnected(self) -> None:
        """Look now, and from the start: what was asked before gets no answer any more."""
        self.wake()
        expire(self._looking)

    async def stop(self) -> None:
        """End the task; what it has noticed already it sees to, within a bound."""
        await end(self._task)
        if self._due or self._again:
            with suppress(RatchetError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._look()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            self._woken.clear()
            try:
                async with asyncio.timeout(None) as self._looking:
                    await self._look()
            except TimeoutError:  # the connection was lost meanwhile
                continue
            except RatchetError as error:  # the broker is away, or not whole yet: the next look finds the same
                log.warning("the broker is looked after later", reason=str(error))
            except Exception as error:  # noqa: BLE001 - the boundary: a fault here must not end the looking after
                log.error("the broker cannot be looked after", **failure(error, self._bus.contracts.mask))

    async def _look(self) -> None:
        if not self._bus.is_connected:
            return
        due, self._due = self._due, False
        try:
            await self._see_to(everything=due)
        except BaseException:
            self._due = self._due or due
            raise
        while self._unreported:
            await self._bus.publish(self._unreported[0])
            del self._unreported[0]

    async def _see_to(self, *, everything: bool) -> None:
        if self._makes:
            await self._make_again(everything=everything)
        now = time.monotonic()
        if everything or self._again or now - self._asked_at >= ASK_S:
            self._asked_at = now
            self.acknowledged.forget_old()
            asked = self._bus.publishers if everything else self.acknowledged.streams()
            for stream in [stream for stream in asked if self._bus.publishers[stream].last]:
                await self._ask(self._bus.publishers[stream])
            await self._publish_again()

    async def _make_again(self, *, everything: bool) -> None:
        missing = await self._bus.missing()
        if missing or everything:
            await self._bus.make_streams()
        gone = sorted(missing - self._in_memory)
        for name in gone:
            MADE_AGAIN.labels(name).inc()
        if gone:
            self._report(
                f"made-again:{gone[0] if len(gone) == 1 else 'several'}",
                f"gone from the broker, and made again, empty: {', '.join(gone)}. Programs publish again what they"
                " published there in the last 5 minutes; older messages are where services have stored them, values of"
                " buckets are gone.",
            )

    async def _ask(self, publisher: Publisher) -> None:
        """Whether the stream still has what it has acknowledged; else what is held goes there again."""
        last, made = publisher.last, publisher.made
        try:
            extent = await self._bus.extent(publisher.stream)
        except BusUnavailable as error:
            log.debug("asked again later", reason=str(error))
            self._asked_at = 0.0
            return
        publisher.made = extent.made
        anew = made not in ("", extent.made)
        if not anew and extent.last >= last and publisher.rewound_to is None:
            return
        back_to = 0 if anew else extent.last if publisher.rewound_to is None else publisher.rewound_to
        gone, held = self.acknowledged.gone(publisher.stream), self.acknowledged.take(publisher.stream)
        publisher.last, publisher.rewound_to = extent.last, None
        self._again += held
        AGAIN.labels(publisher.stream).inc(len(held))
        lost = f" What it published before, up to {gone}, it holds no more." if gone > back_to else ""
        name, what = publisher.stream, "was made anew" if anew else "came back as an older copy, or was made anew"
        self._report(
            f"published-again:{name}:{self._bus.name}",
            f"{name} {what}: {self._bus.name} publishes again what the stream had acknowledged in the last 5 minutes"
            f" ({len(held)} messages).{lost}",
            severity="critical" if lost else "warning",
        )

    async def _publish_again(self) -> None:
        results = await asyncio.gather(*map(self._bus.publish_record, self._again), return_exceptions=True)
        sent = list(zip(self._again, results, strict=True))
        self._again = [record for record, result in sent if isinstance(result, BusUnavailable)]
        for _, result in sent:
            if isinstance(result, Rejected):
                log.error("message refused", reason=str(result))
            elif result is not None and not isinstance(result, BusUnavailable):
                raise result
        if self._again:
            raise BusUnavailable(f"{len(self._again)} messages are not published again yet")

    def _report(self, key: str, summary: str, severity: str = "critical") -> None:
        log.error("the broker lost data", reason=summary)
        if (report := self._bus.contracts.report) is not None:
            self._unreported.append(report(Notice(key, severity, summary, self._bus.name, self._bus.now())))
