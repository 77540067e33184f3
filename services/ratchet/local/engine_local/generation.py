"""The rows of a request: handed to the torch thread, counted, read as they come, and dropped with their request."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from ratchet.core.errors import BadRequest
from ratchet.core.grammars.walk import Grammar
from ratchet.core.service.problems import HttpError
from ratchet.local.engine_local import metrics
from ratchet.local.engine_local.domain.answers import Completion
from ratchet.local.engine_local.domain.requests import AnswerOptions, Sampling
from ratchet.local.engine_local.registry import Entry
from ratchet.local.engine_local.settings import MAX_REQUESTS
from ratchet.local.engine_local.torch_batch import Job, Update
from ratchet.local.engine_local.torch_policies import Served


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a request wants continued, and how."""

    ids: Sequence[int]
    sampling: Sampling
    options: AnswerOptions
    grammar: Grammar | None = None
    """What every answer follows."""


class Rows:
    """The rows of one request, one for each choice, while they are computed."""

    def __init__(self, count: int) -> None:
        self.ends: list[Completion | Exception | None] = [None] * count
        """How each row ended; None while it is computed."""
        self._updates: deque[tuple[int, Update]] = deque()
        self._arrived = asyncio.Event()

    def add(self, index: int, update: Update) -> None:
        """News of a row."""
        self.ends[index] = update.end
        self._updates.append((index, update))
        self._arrived.set()

    async def begun(self) -> None:
        """Wait until there is something to read. Raises the error of a row that fails before it has a token."""
        await self._arrived.wait()
        end = self._updates[0][1].end
        if isinstance(end, Exception):
            raise end

    async def updates(self) -> AsyncGenerator[tuple[int, Update], None]:
        """What comes, by row, until all have ended. Raises the error of a row that fails."""
        ended = 0
        while ended < len(self.ends):
            await self._arrived.wait()
            index, update = self._updates.popleft()
            if not self._updates:
                self._arrived.clear()
            if isinstance(update.end, Exception):
                raise update.end
            ended += update.end is not None
            yield index, update

    async def completions(self) -> list[Completion]:
        """All of them. Raises the error of a row that fails."""
        async with aclosing(self.updates()) as updates:
            async for _ in updates:
                pass
        return self.done()

    def done(self) -> list[Completion]:
        """Those that have come so far."""
        return [end for end in self.ends if isinstance(end, Completion)]


class Generations:
    """Hands requests to the torch thread, within the number of rows that may be open."""

    def __init__(self, submit: Callable[[Served, Job], None], max_requests: int = MAX_REQUESTS) -> None:
        """`submit` has a job computed elsewhere; the job's `on_progress` receives what becomes of it."""
        self._submit = submit
        self._max_requests = max_requests
        self._open = 0

    @contextmanager
    def rows(self, entry: Entry[Served], prompt: Prompt) -> Iterator[Rows]:
        """Compute the choices of a request; leaving the block drops the rows that are not done.

        Raises `BadRequest` for what can never be computed, and `HttpError` 429 when the engine is full.
        """
        count = prompt.options.choices
        limit = self._limit(entry.served, prompt)
        if self._open + count > self._max_requests:
            metrics.REQUESTS.labels(entry.name, "refused").inc()
            raise HttpError(429, "the engine is full, try again", kind="rate_limit_error", code="engine_full")
        rows = Rows(count)
        jobs = [_job(entry.served, prompt, limit, rows, index) for index in range(count)]
        self._count_open(count)
        began = time.monotonic()
        try:
            for job in jobs:
                self._submit(entry.served, job)
            yield rows
        finally:
            for job in jobs:
                job.cancelled = True
            self._count_open(-count)
            for end in rows.ends:
                _count(entry.name, end, time.monotonic() - began)

    def _limit(self, served: Served, prompt: Prompt) -> int:
        """Most tokens of one answer. Raises `BadRequest` for a prompt that leaves no room, or too many choices."""
        if prompt.options.choices > self._max_requests:
            raise BadRequest(f"n must be at most {self._max_requests} at this engine", param="n")
        room = served.context - len(prompt.ids)
        if room < 1:
            # OpenAI's words and code, by which clients and proxies know to shorten the conversation.
            message = (
                f"This model's maximum context length is {served.context} tokens. However, your messages resulted in "
                f"{len(prompt.ids)} tokens. Please reduce the length of the messages."
            )
            raise BadRequest(message, code="context_length_exceeded", param="messages")
        return min(prompt.sampling.max_tokens or room, room)

    def _count_open(self, more: int) -> None:
        self._open += more
        metrics.OPEN.set(self._open)


def _job(served: Served, prompt: Prompt, limit: int, rows: Rows, index: int) -> Job:
    """The job of one choice; with a seed, each choice has the next one, as in vLLM."""
    sampling = prompt.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + index)
    return Job(
        prompt.ids,
        sampling,
        limit,
        partial(rows.add, index),
        stream=prompt.options.stream,
        top_logprobs=prompt.options.top_logprobs,
        prompt_logprobs=None if index else prompt.options.prompt_logprobs,  # they are the same for every choice
        grammar=prompt.grammar,
        stops_in=served.text.stop_finder(sampling.stop) if sampling.stop else None,
    )


def _count(policy: str, end: Completion | Exception | None, seconds: float) -> None:
    if not isinstance(end, Completion):
        metrics.REQUESTS.labels(policy, "cancelled" if end is None else "failed").inc()
        return
    metrics.REQUESTS.labels(policy, end.finish_reason).inc()
    metrics.LATENCY.observe(seconds)
    metrics.TOKENS.labels("generated").inc(len(end.token_ids))
    metrics.TOKENS.labels("reused").inc(end.cached_tokens)
    metrics.TOKENS.labels("computed").inc(end.prompt_tokens - end.cached_tokens)
