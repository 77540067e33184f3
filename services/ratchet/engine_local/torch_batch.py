"""The running batch of one policy: requests join and leave between two forward passes."""

# ruff: noqa: N806 - names of tensors end in their shape

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ratchet.engine_local.domain.answers import Completion
from ratchet.engine_local.domain.prefix_index import Match, PrefixIndex
from ratchet.engine_local.domain.requests import Sampling
from ratchet.engine_local.torch_sampling import Drawer, Drawn, draw, drawer
from ratchet.engine_local.torch_slots import KeysValues, Network, Slots
from ratchet.errors import RatchetError


@dataclass(slots=True, eq=False)
class Job:
    """One completion to compute. `done` and `failed` are called once, from the torch thread."""

    prompt: Sequence[int]
    sampling: Sampling
    limit: int
    """Most tokens to generate."""
    done: Callable[[Completion], None]
    failed: Callable[[Exception], None]
    top_logprobs: int = 0
    stops_in: Callable[[Sequence[int]], bool] | None = None
    """Whether the output so far contains a stop text."""
    cancelled: bool = False
    """Set by the request when its caller is gone."""


@dataclass(slots=True, eq=False)
class _Row:
    job: Job
    drawer: Drawer
    reused: Match[KeysValues] | None
    output: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    top: list[Sequence[tuple[int, float]]] = field(default_factory=list[Sequence[tuple[int, float]]])

    @property
    def cached(self) -> int:
        return self.reused.length if self.reused else 0


class Batch:
    """All sequences that one policy is working on. Used by one thread only."""

    def __init__(self, network: Network, eos: frozenset[int], prefix_tokens: int, seed: int) -> None:
        self._slots = Slots(network)
        self._eos = eos
        self._prefixes: PrefixIndex[KeysValues] = PrefixIndex(prefix_tokens)
        self._generator = torch.Generator().manual_seed(seed)
        self._rows: list[_Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def new_tokens(self, job: Job) -> int:
        """Prompt tokens that would have to be computed for `job`."""
        match = self._prefixes.longest_prefix(job.prompt)
        return len(job.prompt) - (match.length if match else 0)

    def join(self, jobs: Sequence[Job]) -> None:
        """Compute the prompts of `jobs` together and draw their first tokens."""
        if not jobs:
            return
        rows = [
            _Row(job, drawer(job.sampling, job.top_logprobs, job.prompt), self._prefixes.longest_prefix(job.prompt))
            for job in jobs
        ]
        first = len(self._rows)
        for row in rows:
            stored = row.reused.stored.payload if row.reused else None
            self._slots.open(stored, row.cached)
        self._rows += rows
        self._advance(first, [row.job.prompt[row.cached :] for row in rows])

    def step(self) -> None:
        """One more token for every row."""
        if self._rows:
            self._advance(0, [row.output[-1:] for row in self._rows])

    def fail(self, error: Exception) -> None:
        """Give up every row; the batch is empty and usable afterwards."""
        for row in self._rows:
            row.job.failed(error)
        self._rows.clear()
        self._slots.clear()

    def _advance(self, first: int, new_ids: Sequence[Sequence[int]]) -> None:
        """One token more for the rows from `first` on; those that end with it, or are cancelled, leave."""
        logits_BV = self._slots.forward(first, new_ids)
        drawn = draw(logits_BV, [row.drawer for row in self._rows[first:]], self._generator)
        ended = [self._add_token(row, one) for row, one in zip(self._rows[first:], drawn, strict=True)]
        for place in reversed(range(first, len(self._rows))):
            row, end = self._rows[place], ended[place - first]
            job = row.job
            if end is None and not job.cancelled:
                continue
            if isinstance(end, str):
                ids = [*job.prompt, *row.output[:-1]]
                self._prefixes.add(ids, self._slots.contents(place), row.reused)
                job.done(Completion(row.output, row.logprobs, end, len(job.prompt), row.cached, row.top))
            elif end is not None:
                job.failed(end)
            moved = self._slots.close(place)
            self._rows[place] = self._rows[moved]
            self._rows.pop()

    def _add_token(self, row: _Row, drawn: Drawn) -> str | Exception | None:
        """Add a token; returns why the row ends with it, None when it goes on."""
        if not math.isfinite(drawn.logprob):
            return RatchetError("the policy produced NaN or infinite log-probabilities", code="not_finite")
        row.output.append(drawn.token)
        row.logprobs.append(drawn.logprob)
        if row.job.top_logprobs:
            row.top.append(drawn.top)
        ends = drawn.token in self._eos or drawn.token in row.job.sampling.stop_token_ids
        if ends or (row.job.stops_in is not None and row.job.stops_in(row.output)):
            return "stop"
        return "length" if len(row.output) >= row.job.limit else None
