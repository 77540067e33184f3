"""Messages from a JetStream pull consumer, as a steady flow in small batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

import nats.errors
import structlog
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.js.api import ConsumerConfig
from nats.js.errors import Error as JetStreamError

log = structlog.get_logger()

PULL_EXPIRES_S = 5.0
"""How long one pull request waits at the server; a lost request is repeated after this."""
DRAIN_S = 2.0
"""How long `close` waits for what the server has sent already; the rest is delivered again after its `ack_wait`."""


class Puller:
    """Keeps about two batches on their way and hands them out with a linger.

    The consumer is created if it is missing, and again if it vanishes (`config` says how).
    """

    def __init__(self, nc: Nats, stream: str, config: ConsumerConfig, batch: int, linger_s: float) -> None:
        self._nc = nc
        self._stream = stream
        self._config = config
        self._batch = batch
        self._linger_s = linger_s
        self._name = config.durable_name or config.name or ""
        self._buffer: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._credit = 0
        self._asked_at = 0.0
        self._subscription: NatsSubscription | None = None

    async def open(self) -> None:
        """Create the consumer and subscribe to deliveries."""
        info = await self._nc.jetstream().add_consumer(self._stream, config=self._config)
        self._name = info.name
        if self._subscription is None:
            self._subscription = await self._nc.subscribe(self._nc.new_inbox(), cb=self._on_message)
        self._credit = 0

    async def next_batch(self, wait_s: float) -> list[Msg]:
        """Up to `batch` messages: waits up to `wait_s` for the first, then at most the linger for more."""
        await self._ask()
        try:
            async with asyncio.timeout(wait_s):
                first = await self._buffer.get()
        except TimeoutError:
            return []
        if first is None:
            return []
        return await self._with_company(first)

    def interrupt(self) -> None:
        """Let a waiting `next_batch` return at once, empty."""
        self._buffer.put_nowait(None)

    async def _with_company(self, first: Msg) -> list[Msg]:
        messages = [first]
        until = asyncio.get_running_loop().time() + self._linger_s
        while len(messages) < self._batch:
            try:
                async with asyncio.timeout_at(until):
                    after = await self._buffer.get()
            except TimeoutError:
                break
            if after is None:
                break
            messages.append(after)
        return messages

    async def close(self) -> Sequence[Msg]:
        """Stop pulling; returns what was delivered but not handed out, what was still on its way included."""
        if self._subscription is not None:
            leave = self._subscription.drain if self._nc.is_connected else self._subscription.unsubscribe
            with suppress(nats.errors.Error, TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await leave()
            self._subscription = None
        waiting = [self._buffer.get_nowait() for _ in range(self._buffer.qsize())]
        return [message for message in waiting if message is not None]

    async def _ask(self) -> None:
        """Send a pull request when little is on its way, or when the last one must have expired."""
        assert self._subscription is not None, "open() comes first"  # noqa: S101 - a programming error
        now = asyncio.get_running_loop().time()
        expired = now - self._asked_at > PULL_EXPIRES_S + 1.0
        if self._buffer.qsize() > self._batch or (self._credit > self._batch // 2 and not expired):
            return
        wanted = {"batch": self._batch, "expires": int(PULL_EXPIRES_S * 1e9)}
        await self._nc.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}",
            json.dumps(wanted).encode(),
            reply=self._subscription.subject,
        )
        self._credit = self._batch if expired else self._credit + self._batch
        self._asked_at = now

    async def _on_message(self, message: Msg) -> None:
        # What the server says itself wants no answer; a publisher's own header `Status` means nothing here.
        status = None if message.reply else (message.headers or {}).get("Status")
        if status is None:
            self._credit = max(0, self._credit - 1)
            self._buffer.put_nowait(message)
            return
        self._credit = 0
        if status in {"409", "503"}:
            await self._reopen((message.headers or {}).get("Description", status))

    async def _reopen(self, reason: str) -> None:
        if "exceeded" in reason.lower():
            return
        log.warning("consumer lost, creating it again", stream=self._stream, consumer=self._name, reason=reason)
        with suppress(nats.errors.Error, JetStreamError):
            self._name = (await self._nc.jetstream().add_consumer(self._stream, config=self._config)).name
