"""Who is not to be recorded, as a client knows it: its own agent's word, at once, and what the broker's bucket says.

Asked before anything leaves the process: on the preparer's thread, once for each person in 5 s. While the broker is
away the last answer counts; of someone who was never asked about nothing is known then. What is recorded of them waits
in the spool, and the collector drops it when it comes. A client that has just begun gives the broker a second first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import has_key
from ratchet.bus.recent import Recent
from ratchet.core.contract import Feedback, Message, OptOut, Preference, Trajectory
from ratchet.core.contract.erasure import TRAJECTORY, USER
from ratchet.core.contract.opt_out import OPT_OUTS
from ratchet.core.errors import BusUnavailable, Unavailable
from ratchet.core.rules.opt_outs import key_of, keys_of, refs_of
from ratchet.core.rules.texts import user_ref

log = structlog.get_logger()

FRESH_S = 5.0
"""How long an answer counts without another look."""
WAIT_S, POLL_S = 1.0, 0.01
"""Longest wait for an answer, which takes about a millisecond; then none is asked for again for `FRESH_S`."""
KNOWN_BYTES, ENTRY_BYTES = 16 * 1024 * 1024, 400
"""Memory for answers: 40,000."""


@dataclass(slots=True)
class _Known:
    """What is known of a key."""

    is_out: bool
    asked_s: float
    own: bool = False
    """Its own agent has said so, and the bucket does not say it yet."""


@dataclass
class OptOuts:
    """`covers` from any thread."""

    user_key: str | None
    bus: Callable[[], Bus | None]
    """The connection, once there is one."""
    loop: Callable[[], asyncio.AbstractEventLoop | None]
    """That of the connection, once it is being made."""
    monotonic: Callable[[], float] = time.monotonic
    _has_waited: bool = field(default=False, init=False)
    """The broker had its second."""
    _not_before_s: float = field(default=0.0, init=False)
    """Until when none is asked for, after a question that stayed without an answer."""
    _asking: Future[Mapping[str, bool]] | None = field(default=None, init=False)
    _is_over: bool = field(default=False, init=False)
    _known: Recent[str, _Known] = field(default_factory=lambda: Recent[str, _Known](KNOWN_BYTES), init=False)

    def note(self, opt_out: OptOut) -> None:
        """Heed here, and now, what this client sends."""
        self._put(key_of(opt_out), _Known(not opt_out.is_over, self.monotonic() - FRESH_S, own=True))

    def stop_asking(self) -> None:
        """From now on what is known counts: its process ends, and nothing may wait. From any thread."""
        self._is_over = True
        if self._asking is not None:
            self._asking.cancel()

    def covers(self, message: Message) -> bool:
        """Whether a message is about someone who has opted out, or from them. Feedback on a trajectory that was about
        them is, too."""
        role = getattr(message, "role", None)
        if role is None or isinstance(message, OptOut):
            return False
        refs = [*refs_of(message)]
        if isinstance(message, Feedback | Preference) and (rater := user_ref(self.user_key, message.rater)):
            refs.append((USER, rater))
        asked = [*keys_of(role, [ref for ref in refs if ref[0] != TRAJECTORY])]
        self._look_up([key for key in asked if self._is_stale(key)])
        own = keys_of(role, [ref for ref in refs if ref[0] == TRAJECTORY])
        is_out = any(known.is_out for key in (*asked, *own) if (known := self._known.get_value(key)))
        if is_out and isinstance(message, Trajectory):
            for key in keys_of(role, [(TRAJECTORY, message.trajectory_id)]):
                self._put(key, _Known(is_out=True, asked_s=0.0))
        return is_out

    def _is_stale(self, key: str) -> bool:
        known = self._known.get_value(key)
        return known is None or self.monotonic() - known.asked_s >= FRESH_S

    def _look_up(self, keys: Sequence[str]) -> None:
        """Ask the broker for keys, unless it is away; not from its own loop, which would wait for itself."""
        loop = self.loop() if keys and self.monotonic() >= self._not_before_s else None
        if loop is None or not loop.is_running() or self._is_over:
            return
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                return
        asking = self._asking = asyncio.run_coroutine_threadsafe(self._looked_up(keys), loop)
        if self._is_over:
            asking.cancel()
        try:
            kept: Mapping[str, bool] = asking.result(WAIT_S)
        except (Unavailable, TimeoutError, CancelledError) as error:
            asking.cancel()
            log.debug("not known who has opted out", reason=repr(error))
            self._not_before_s = self.monotonic() + (FRESH_S if self.bus() else 0.0)
            return
        finally:
            self._has_waited = True
        for key, is_out in kept.items():
            self._learn(key, is_out)

    async def _looked_up(self, keys: Sequence[str]) -> Mapping[str, bool]:
        """What the bucket says of keys. Raises `BusUnavailable`."""
        while (bus := self.bus()) is None or not bus.is_connected:
            if self._has_waited:
                raise BusUnavailable("the broker is away")
            await asyncio.sleep(POLL_S)
        kept = await asyncio.gather(*(has_key(bus, OPT_OUTS, key) for key in keys))
        return dict(zip(keys, kept, strict=True))

    def _learn(self, key: str, is_out: bool) -> None:
        """Take over what the bucket says of a key."""
        known = self._known.get_value(key) or _Known(is_out=False, asked_s=0.0)
        known.asked_s = self.monotonic()
        if not known.own or is_out == known.is_out:
            known.is_out, known.own = is_out, False
        self._put(key, known)

    def _put(self, key: str, known: _Known) -> None:
        self._known.put_value(key, known, ENTRY_BYTES)
