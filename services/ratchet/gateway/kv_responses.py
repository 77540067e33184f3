"""Responses that a later call may continue, in a bucket of the broker: any gateway finds what another one answered.

A history must be kept whole, and nothing unredacted may reach the broker's disk in the clear: it is sealed with a key
that follows from the response's id, which only the agent has. No answer waits long for the broker: until it has stored
a history, this process holds it, and continues it from there.

The whole history is kept with each response. Differences would be smaller, but take n look-ups for n calls, and a
deleted response would break those after it. A secret of the operator's as the key would be one more thing to rotate,
and who has it would read everything.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog
import zstandard
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from ratchet.bus.kv import Bucket
from ratchet.bus.tasks import end
from ratchet.core.contract.state import SealedResponse
from ratchet.core.errors import BusUnavailable, RatchetError, Unreadable
from ratchet.dialects.responses.state import ResponseState, decode_state, encode_state

log = structlog.get_logger()


WAIT_S = 0.25
"""How long an answer waits until the broker has stored what it adds, so that any gateway can continue it. While the
broker takes longer, no further answer waits."""
RETRY_S = 2.0
"""Pause between two tries to store what the broker did not take."""
UNSTORED_BYTES = 64 * 1024 * 1024
"""Memory for what is not stored yet, sealed; beyond it the oldest is given up."""


@dataclass(slots=True)
class Responses:
    """Reads and writes the states of responses and conversations."""

    bucket: Callable[[], Bucket[SealedResponse] | None]
    """None while there is no connection to the broker."""
    wait_s: float = WAIT_S
    retry_s: float = RETRY_S
    unstored_bytes: int = UNSTORED_BYTES
    _unstored: dict[str, SealedResponse] = field(default_factory=dict[str, SealedResponse], init=False)
    """By id, in the order of their coming."""
    _held: int = field(default=0, init=False)
    _storing: set[asyncio.Task[bool]] = field(default_factory=set, init=False)
    _retrying: asyncio.Task[None] | None = field(default=None, init=False)
    _slow: bool = field(default=False, init=False)
    """The last put that an answer waited for took too long."""

    async def get_state(self, state_id: str) -> ResponseState | None:
        """The state under its id, None where there is none. Raises `BusUnavailable`, or `Unreadable`."""
        value = self._unstored.get(state_id)
        if value is None:
            entry = await self._bucket().get(entry_key(state_id))
            value = entry.value if entry is not None else None
        return None if value is None else unsealed(state_id, value)

    async def put_state(self, state: ResponseState) -> bool:
        """Keep a state; whether it can be continued: here at once, elsewhere when the broker has stored it. An answer
        does not fail because its state cannot be kept."""
        encoded = encode_state(state)
        if encoded is None:
            log.warning("a history is too large to be continued by its id", items=len(state.items))
            return False
        value = sealed(state.id, encoded)
        self._hold(state.id, value)
        storing = asyncio.create_task(self._store(state.id, value))
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        if not self._slow:
            done, _ = await asyncio.wait({storing}, timeout=self.wait_s)
            self._slow = not done
        return state.id in self._unstored or (storing.done() and storing.result())

    async def delete_state(self, state_id: str) -> None:
        """Forget a state. Raises `BusUnavailable`; then it is not forgotten."""
        unstored = self._release(state_id)
        try:
            await self._bucket().delete(entry_key(state_id))
        except BusUnavailable:
            if unstored is not None:
                self._hold(state_id, unstored)
            raise

    async def close(self) -> None:
        """Give up what is not stored."""
        await end(self._retrying, *self._storing)

    def _hold(self, state_id: str, value: SealedResponse) -> None:
        self._release(state_id)
        self._unstored[state_id] = value
        self._held += len(value.sealed)
        while self._held > self.unstored_bytes:
            self._release(next(iter(self._unstored)))
            log.warning("a response cannot be kept", reason="the broker stores none, and memory is full")

    def _release(self, state_id: str) -> SealedResponse | None:
        value = self._unstored.pop(state_id, None)
        self._held -= len(value.sealed) if value is not None else 0
        return value

    async def _store(self, state_id: str, value: SealedResponse) -> bool:
        """Have the broker store a value; whether it has. What it does not take is tried again later."""
        try:
            await self._bucket().put(entry_key(state_id), value)
        except RatchetError as error:
            if self._retrying is None or self._retrying.done():
                log.warning("the broker does not store responses", reason=type(error).__name__)
                self._retrying = asyncio.create_task(self._store_later())
            return False
        self._slow = False
        if self._unstored.get(state_id) is value:  # a conversation may have gone on
            self._release(state_id)
        return True

    async def _store_later(self) -> None:
        while self._unstored:
            await asyncio.sleep(self.retry_s)
            for state_id, value in list(self._unstored.items()):
                if self._unstored.get(state_id) is value and not await self._store(state_id, value):
                    break

    def _bucket(self) -> Bucket[SealedResponse]:
        bucket = self.bucket()
        if bucket is None:
            raise BusUnavailable("the broker, which keeps responses, is not reachable; send the whole input meanwhile")
        return bucket


def entry_key(state_id: str) -> str:
    """The key of a state's entry, from which its id does not follow."""
    return hashlib.sha256(b"entry of response " + state_id.encode()).hexdigest()


def sealed(state_id: str, encoded: bytes) -> SealedResponse:
    """An encoded state as only the owner of its id can read it; a new nonce each time."""
    box = _box(state_id).encrypt(zstandard.compress(encoded))
    return SealedResponse(sealed=base64.b64encode(box).decode())


def unsealed(state_id: str, value: SealedResponse) -> ResponseState:
    """The inverse. Raises `Unreadable`."""
    try:
        packed = _box(state_id).decrypt(base64.b64decode(value.sealed, validate=True))
        return decode_state(zstandard.decompress(packed))
    except (CryptoError, ValueError, zstandard.ZstdError, msgspec.DecodeError) as error:
        raise Unreadable(f"responses/{entry_key(state_id)}", 0, type(error).__name__) from error


def _box(state_id: str) -> SecretBox:
    return SecretBox(hashlib.sha256(b"key of response " + state_id.encode()).digest())
