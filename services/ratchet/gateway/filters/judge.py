"""Asks one filter: rules of this product here, a filter of another package in processes of its own.

That one may hang, crash, or hold the interpreter: whatever it does, the event loop goes on. Where it takes too long,
all its processes are ended, and the next call starts others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context

from ratchet.gateway.filters import FILTERS
from ratchet.gateway.filters.base import ACTIONS, Filter, FilterFailed, Verdict

LIMIT_S = 10.0
"""For all texts of a call, with the wait for a process, and for its start."""
PROCESSES = 4
"""Of one filter: calls that it judges side by side."""
LARGEST = 1024 * 1024
"""Characters of a replacement: no model reads more."""
SHORT = 16 * 1024
"""Characters that rules read in about three milliseconds; more are read beside the event loop."""
KNOWN = 512
"""Texts whose verdicts a process remembers: agents send a conversation again with each of its calls."""


class Judge:
    """One filter, by its name."""

    def __init__(self, name: str, limit_s: float = LIMIT_S) -> None:
        """Raises `ConfigError` for one that does not fit."""
        self._name, self._filter, self.limit_s = name, lru_cache(KNOWN)(FILTERS[name]), limit_s
        self._pool: ProcessPoolExecutor | None = None

    async def judge(self, texts: Sequence[str]) -> Sequence[Verdict | None]:
        """A verdict for each text. Raises `FilterFailed`."""
        own = self._name in FILTERS.built_in
        if own and sum(map(len, texts)) <= SHORT:
            return judged(self._filter, texts)
        if not own and self._pool is None:
            self._pool = ProcessPoolExecutor(PROCESSES, get_context("spawn"))
        ask = partial(judged, self._filter, texts) if own else partial(judged_by, self._name, texts)
        try:
            async with asyncio.timeout(self.limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._pool, ask)
        except FilterFailed:
            raise
        except Exception as error:  # the boundary: it may be too late, its process may have ended, or not begun
            self.close()
            raise FilterFailed(f"{type(error).__name__} within {self.limit_s:g} s") from error

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
    return judged(_remembering(name), texts)


@lru_cache
def _remembering(name: str) -> Filter:
    return lru_cache(KNOWN)(FILTERS[name])


def judged(rules: Filter, texts: Sequence[str]) -> Sequence[Verdict | None]:
    """The verdicts. Raises `FilterFailed` where the filter raises, or gives what is none."""
    verdicts = list[Verdict | None]()
    for text in texts:
        try:
            verdict: object = rules(text)
        except Exception as error:  # noqa: BLE001 - the boundary: a filter of another package may raise anything
            raise FilterFailed(f"it raised {type(error).__name__}") from None  # its words may be people's
        if verdict is not None and not _is_verdict(verdict):
            raise FilterFailed(
                f"it gave a {type(verdict).__name__}, not a verdict with texts of bounded length, or None"
            )
        verdicts.append(verdict)  # pyright: ignore[reportArgumentType] - looked at above
    return verdicts


def _is_verdict(given: object) -> bool:
    if not isinstance(given, Verdict) or given.action not in ACTIONS:
        return False
    texts: list[object] = [given.reason, given.replacement]
    return all(isinstance(text, str) and len(text) <= LARGEST for text in texts)
