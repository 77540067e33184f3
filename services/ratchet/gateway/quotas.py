"""What keys use, and their limits on tokens in a minute and on money in a day.

A call is counted when its answer is there, so calls that are under way when a limit is reached still end: a key exceeds
its limit by at most what they cost. Meanwhile the length of its prompt counts against the tokens of the minute, at the
gateway that it came to. Both are those of all gateways. Of tokens they tell each other with each answer.
Money stands in the bucket `key_usage`: each process writes its own sum within `FLUSH_S` and follows those of others, so
other gateways learn of an answer about a second late, and a key may exceed its limit by what it uses in that second
as well. While the broker is away each process counts for itself; what it has not written yet is lost with the process.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.bus.tasks import Lasting, end
from ratchet.core.contract.gateway_notes import UseNote
from ratchet.core.contract.state import KEY_USAGE, KeyUsage
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.access import Caller
from ratchet.core.service.problems import HttpError
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.prices import CHARACTERS

log = structlog.get_logger()

RESERVED = 4_000
"""Most tokens of a prompt that count before its answer is there: images have many more bytes than tokens."""
FLUSH_S = 1.0
"""How often what was counted is written."""


@dataclass(slots=True)
class _Tokens:
    """How many more a key may use now: less than 0 after an answer that was larger than the rest."""

    left: float
    at: float


class Quotas(Lasting):
    """Counts what keys use, and refuses calls beyond their limits."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Bus]],
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
        updates: PeerUpdates,
        *,
        has_prices: bool = True,
    ) -> None:
        """`updates` tell other gateways what keys with a limit use; `has_prices`: some calls cost money."""
        super().__init__()
        self._connect = connect
        self._now = now
        self._monotonic = monotonic
        self._updates = updates
        self._has_prices = has_prices
        self._warned_of: set[str] = set()
        """Keys of which the log says that their limit on money does nothing."""
        self._process = uuid.uuid4().hex
        self._tokens: dict[str, _Tokens] = {}
        self._own: dict[str, KeyUsage] = {}
        self._others: dict[str, dict[str, KeyUsage]] = {}
        """By key and process."""
        self._pruned = ""
        """The day on which those of earlier days were left out."""
        self._unwritten: set[str] = set()
        self._bucket: Bucket[msgspec.Raw] | None = None

    def reserve(self, caller: Caller, size: int) -> Callable[[], None] | None:
        """Count the prompt of a call, of `size` bytes, until the returned function is called: when the call is over.
        None where its tokens have no limit. Raises as `require` does."""
        self.require(caller)
        held = self._tokens.get(caller.key_id or "")
        if held is None:
            return None
        tokens = min(size // CHARACTERS, RESERVED)
        held.left -= tokens

        def release() -> None:
            held.left += tokens

        return release

    def require(self, caller: Caller) -> None:
        """Raises `HttpError` (429) for a caller whose key has used up its tokens of the minute or its money of the
        day."""
        if caller.key_id is None:
            return
        per_minute, per_day = caller.limits.tokens_per_minute, caller.limits.usd_per_day
        if per_day is not None and not self._has_prices and caller.key_id not in self._warned_of:
            self._warned_of.add(caller.key_id)
            reason = "without RATCHET_GATEWAY_ENGINE_PRICE, and `prices` of an upstream, no call costs anything"
            log.warning("a key's limit in USD does nothing", key_id=caller.key_id, reason=reason)
        if per_day is not None and self.spent_today(caller.key_id) >= per_day:
            message = f"the key {caller.key_id} has used up its {per_day:g} USD of today; the day ends at midnight UTC"
            now = self._now()
            midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            raise _too_much(message, "insufficient_quota", math.ceil((midnight - now).total_seconds()))
        left = self._refilled(caller.key_id, per_minute).left if per_minute is not None else 1.0
        if per_minute is not None and left <= 0:
            wait_s = max(1, math.ceil((1 - left) * 60 / per_minute))
            message = f"the key {caller.key_id} has used up its {per_minute} tokens per minute; try again in {wait_s} s"
            raise _too_much(message, "rate_limit_exceeded", wait_s)

    def account(self, key_id: str, tokens: int, usd: float) -> None:
        """Count a call that is over: the tokens of its prompt and answer, and what they cost."""
        if key_id in self._tokens:
            self._tokens[key_id].left -= tokens
            self._updates.used(key_id, tokens=tokens)
        own = self._of_today(self._own.get(key_id)) or KeyUsage(key_id=key_id, day=self._today())
        self._own[key_id] = KeyUsage(
            key_id=own.key_id, day=own.day, calls=own.calls + 1, tokens=own.tokens + tokens, usd=own.usd + usd
        )
        self._unwritten.add(key_id)

    def learn(self, use: UseNote) -> None:
        """Count what a key used at another gateway, once it has made a call here: it begins with an equal share."""
        if use.key_id in self._tokens:
            self._tokens[use.key_id].left -= use.tokens

    def spent_today(self, key_id: str) -> float:
        """US dollars that a key has used today (UTC), as far as this process knows."""
        used = [self._own.get(key_id), *self._others.get(key_id, {}).values()]
        return sum(usage.usd for usage in used if self._of_today(usage) is not None and usage is not None)

    async def run(self) -> None:
        """Write what is counted, and follow what others count, until stopped."""
        await super().run()
        if self._bucket is not None:
            await self._write(self._bucket)

    async def _work(self) -> None:
        self._bucket = bucket = Bucket(await self._connect(), KEY_USAGE, msgspec.Raw)
        writing = asyncio.create_task(self._write_often(bucket))
        try:
            async for changes in bucket.watch():
                for key, entry in changes:
                    self._take_over(key, entry.value if entry is not None else None)
                self._prune()
        finally:
            await end(writing)

    def _take_over(self, key: str, stored: msgspec.Raw | None) -> None:
        key_id, _, process = key.rpartition(".")
        others = self._others.setdefault(key_id, {})
        others.pop(process, None)
        if stored is None or process == self._process:
            return
        try:
            others[process] = decode(stored, KeyUsage)
        except msgspec.DecodeError:
            log.warning("use of a key unreadable", key=key)

    def _prune(self) -> None:
        if self._pruned == self._today():
            return
        self._pruned = self._today()
        for key_id, others in list(self._others.items()):
            self._others[key_id] = {
                process: usage for process, usage in others.items() if self._of_today(usage) is not None
            }
            if not self._others[key_id]:
                del self._others[key_id]

    async def _write_often(self, bucket: Bucket[msgspec.Raw]) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self._write(bucket)

    async def _write(self, bucket: Bucket[msgspec.Raw]) -> None:
        """What cannot be written is written with the next round."""
        for key_id in [*self._unwritten]:
            self._unwritten.discard(key_id)
            try:
                await bucket.put(f"{key_id}.{self._process}", msgspec.Raw(msgspec.json.encode(self._own[key_id])))
            except BusUnavailable as error:
                self._unwritten.add(key_id)
                log.debug("use of keys not written", reason=str(error))
                return

    def _refilled(self, key_id: str, per_minute: int) -> _Tokens:
        now = self._monotonic()
        tokens = self._tokens.setdefault(key_id, _Tokens(per_minute / self._updates.gateways, now))
        tokens.left = min(per_minute, tokens.left + (now - tokens.at) * per_minute / 60)
        tokens.at = now
        return tokens

    def _of_today(self, usage: KeyUsage | None) -> KeyUsage | None:
        return usage if usage is not None and usage.day == self._today() else None

    def _today(self) -> str:
        return f"{self._now():%Y-%m-%d}"


def _too_much(message: str, code: str, retry_after_s: int) -> HttpError:
    kind = "insufficient_quota" if code == "insufficient_quota" else "rate_limit_error"
    return HttpError(429, message, kind=kind, code=code, retry_after_s=retry_after_s)
