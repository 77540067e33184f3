"""The grammars that requests ask for: compiled one at a time, on a thread of their own, and refused with a reason."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from ratchet.core.contract.turn import Constraint
from ratchet.core.errors import BadRequest, Rejected, Unavailable
from ratchet.core.grammars.compiler import Compiler
from ratchet.core.grammars.walk import Grammar
from ratchet.local.engine_local import metrics
from ratchet.local.engine_local.torch_policies import Served

MAX_WAITING = 16
"""Grammars that wait to be compiled: a hostile one may take a while, and each that waits holds a request."""


class Grammars:
    """What answers follow. Known grammars cost nothing; new ones never hold up the event loop or other requests."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._waiting = 0

    async def grammar(self, served: Served, constraint: Constraint | None) -> Grammar | None:
        """The grammar of a constraint; None without one. Raises `BadRequest` naming the member, or `Unavailable`."""
        if constraint is None:
            return None
        tokens = served.text.known_tokens
        try:
            known = tokens and self._compiler.known(tokens, constraint)
        except Rejected as error:  # by what was compiled before, or followed too slowly
            metrics.GRAMMARS.labels("refused").inc()
            raise _refusal(constraint, error) from error
        if known is not None:
            metrics.GRAMMARS.labels("given").inc()
            return known
        if self._waiting >= MAX_WAITING:
            metrics.GRAMMARS.labels("busy").inc()
            raise Unavailable("too many grammars wait to be compiled, try again", code="grammars_busy")
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._compiled, served, constraint)
        work.add_done_callback(self._done)
        return await asyncio.shield(work)

    def close(self) -> None:
        """Compile no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._compiler.close()

    def _done(self, work: asyncio.Future[Grammar]) -> None:
        self._waiting -= 1
        refused = work.cancelled() or work.exception() is not None
        metrics.GRAMMARS.labels("refused" if refused else "given").inc()

    def _compiled(self, served: Served, constraint: Constraint) -> Grammar:
        try:
            return self._compiler.compile(served.text.tokens(served.network.vocabulary), constraint)
        except Rejected as error:
            raise _refusal(constraint, error) from error


def _refusal(constraint: Constraint, error: Rejected) -> BadRequest:
    return BadRequest(f"{constraint.member}: {error}", param=constraint.member)
