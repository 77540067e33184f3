"""Asks one filter: rules of this product here, a filter of another package in processes of its own.

That one may hang, crash, or hold the interpreter: whatever it does, the event loop goes on. Where it takes too long,
all its processes are ended, and the next call starts others.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import TypeGuard

from ratchet.gateway.filters import FILTERS, RULES
from ratchet.gateway.filters.base import ACTIONS, Filter, FilterFailed, Verdict

LIMIT_S = 10.0
"""For all texts of a call, with the wait for a process, and for its start."""
PROCESSES = 4
"""Of one filter: calls that it judges side by side."""
LARGEST = 1024 * 1024
"""Characters of a replacement: no model reads more."""
SHORT = 2 * 1024
"""Characters that rules read within a few milliseconds, whatever stands there; more are read beside the event loop."""
LONG = 256 * 1024
"""Characters whose digests take a fraction of a millisecond."""
KNOWN = 16 * 1024
"""Texts whose verdicts a process remembers: agents send a conversation again with each of its calls."""


class Verdicts(dict[bytes, Verdict | None]):
    """Those of a filter that are known, by the digests of their texts."""

    def keep(self, digest: bytes, verdict: Verdict | None) -> None:
        """Remember one; when there are too many, begin anew."""
        if len(self) >= KNOWN:
            self.clear()
        if verdict is None or len(verdict.replacement) <= SHORT:
            self[digest] = verdict


class Judge:
    """One filter, by its name."""

    def __init__(self, name: str, limit_s: float = LIMIT_S) -> None:
        """Raises `ConfigError` for one that does not fit."""
        self._name, self._filter, self.limit_s = name, FILTERS[name], limit_s
        self._known = Verdicts()
        self._pool: ProcessPoolExecutor | None = None

    async def judge(self, texts: Sequence[str], spent_s: float = 0.0) -> Sequence[Verdict | None]:
        """A verdict for each text, in what is left of the time. Raises `FilterFailed`."""
        limit_s = self.limit_s - spent_s
        rules = RULES.get(self._name)
        if rules is not None and self._is_short(texts):
            return judged(self._filter, texts, self._known)
        if rules is not None:  # nothing ends a thread: the rules themselves stop in time
            in_time = partial(rules, until=time.monotonic() + limit_s)
            ask = partial(judged, in_time, texts, self._known)
        else:
            self._pool = self._pool or ProcessPoolExecutor(PROCESSES, get_context("spawn"))
            ask = partial(judged_by, self._name, texts)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._pool, ask)
        except FilterFailed:
            raise
        except Exception as error:  # the boundary: it may be too late, its process may have ended, or not begun
            self.close()
            raise FilterFailed(f"{type(error).__name__} within {self.limit_s:g} s") from error

    def _is_short(self, texts: Sequence[str]) -> bool:
        """Whether what is new in the texts is."""
        length = sum(map(len, texts))
        if SHORT < length <= LONG:
            length = sum(len(text) for text in texts if digest_of(text) not in self._known)
        return length <= SHORT

    def close(self) -> None:
        """End its processes; those that ask at this moment get no verdict."""
        pool, self._pool = self._pool, None
        if pool is not None:
            processes = [*(pool._processes or {}).values()]  # noqa: SLF001 - `kill_workers` comes with Python 3.14
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()


def judged_by(name: str, texts: Sequence[str]) -> Sequence[Verdict | None]:
    """The verdicts of the filter of this name, in a process of its own."""
    return judged(FILTERS[name], texts, _known_of(name))


@lru_cache
def _known_of(_: str) -> Verdicts:
    return Verdicts()


def judged(asked: Filter, texts: Iterable[str], known: Verdicts) -> Sequence[Verdict | None]:
    """The verdicts. Raises `FilterFailed` where the filter raises, or gives what is none."""
    verdicts = list[Verdict | None]()
    for text in texts:
        digest = digest_of(text)
        try:
            verdict = known[digest]
        except KeyError:
            verdict = _verdict(asked, text)
            known.keep(digest, verdict)
        verdicts.append(verdict)
    return verdicts


def digest_of(text: str) -> bytes:
    """Stands for a text among those whose verdicts are known."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _verdict(asked: Filter, text: str) -> Verdict | None:
    try:
        verdict: object = asked(text)
    except FilterFailed:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary: a filter of another package may raise, or exit
        raise FilterFailed(f"it raised {type(error).__name__}") from None  # its words may be people's
    if verdict is None or _is_verdict(verdict):
        return verdict
    raise FilterFailed(f"it gave a {type(verdict).__name__}, not a verdict with texts of bounded length, or None")


def _is_verdict(given: object) -> TypeGuard[Verdict]:
    if not isinstance(given, Verdict) or given.action not in ACTIONS:
        return False
    texts: list[object] = [given.reason, given.replacement]
    return all(isinstance(text, str) and len(text) <= LARGEST for text in texts)
