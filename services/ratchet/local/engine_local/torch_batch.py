"""The running batch of one policy: requests join and leave between two forward passes."""

# ruff: noqa: N806 - names of tensors end in their shape: B rows, T new tokens, V vocabulary, K candidates

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ratchet.core.errors import BadRequest, RatchetError
from ratchet.core.grammars.walk import Grammar
from ratchet.local.engine_local.domain.answers import Completion, Drawn, Scored
from ratchet.local.engine_local.domain.prefix_index import Match, PrefixIndex
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.torch_sampling import Drawer, draw, drawer
from ratchet.local.engine_local.torch_slots import KeysValues, Network, Slots

CHUNK = 64
"""Tokens of a prompt scored at once: a matrix of all of a long prompt and a large vocabulary would take gigabytes."""


@dataclass(slots=True, eq=False)
class Job:
    """One completion to compute."""

    prompt: Sequence[int]
    sampling: Sampling
    limit: int
    """Most tokens to generate."""
    on_progress: Callable[[Update], None]
    """Receives how the job ended, and before that each token when it streams; not called on the torch thread."""
    stream: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    """Score the prompt's tokens too, with so many candidates each."""
    stops_in: Callable[[Sequence[int]], bool] | None = None
    """Whether the output so far contains a stop text."""
    grammar: Grammar | None = None
    """What the answer follows."""
    cancelled: bool = False
    """Set by the request when its caller is gone."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one pass brought to a job."""

    job: Job
    drawn: Drawn | None = None
    """The token, for a job that streams."""
    end: Completion | Exception | None = None
    """How the job ended with this pass."""


@dataclass(slots=True, eq=False)
class _Row:
    job: Job
    drawer: Drawer
    reused: Match[KeysValues] | None
    cached: int
    """Tokens of its prompt that were not computed for it."""
    output: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    top: list[Sequence[tuple[int, float]]] = field(default_factory=list[Sequence[tuple[int, float]]])
    scored: list[Scored] | None = None


class Batch:
    """All sequences that one policy is working on. Used by one thread only."""

    def __init__(self, network: Network, eos: frozenset[int], prefix_tokens: int, seed: int) -> None:
        self._slots = Slots(network)
        self._eos = eos
        self._prefixes: PrefixIndex[KeysValues] = PrefixIndex(prefix_tokens)
        self._generator = torch.Generator().manual_seed(seed)
        self._rows: list[_Row] = []
        self.busy_s = 0.0
        """Time of all passes; its owner adds to it."""

    def __len__(self) -> int:
        return len(self._rows)

    def new_tokens(self, jobs: Sequence[Job]) -> list[int]:
        """Prompt tokens that would have to be computed for each, if they joined together; 0 for a repeated prompt."""
        distinct = {id(job) for job in _distinct(jobs)[0]}
        return [len(job.prompt) - self._known(job) if id(job) in distinct else 0 for job in jobs]

    def _known(self, job: Job) -> int:
        match = self._known_prefix(job)
        return match.length if match else 0

    def join(self, jobs: Sequence[Job]) -> list[Update]:
        """Compute the prompts of `jobs` together, each one once, and draw their first tokens."""
        if not jobs:
            return []
        first = len(self._rows)
        distinct, sources = _distinct(jobs)
        rows = [self._opened(job) for job in distinct]
        starts = self._slots.lengths[first:]
        logits_BV = self._slots.forward(first, [row.job.prompt[at:] for row, at in zip(rows, starts, strict=True)])
        for job, source in sources:
            self._slots.fork(first + source)
            rows.append(_Row(job, self._drawer(job), None, len(job.prompt)))
        self._rows += rows
        return self._advance(first, logits_BV[[*range(len(distinct)), *(source for _, source in sources)]])

    def _opened(self, job: Job) -> _Row:
        """A row with a slot that holds what is known of its prompt."""
        known = self._known_prefix(job)
        row = _Row(job, self._drawer(job), known, known.length if known else 0)
        slot = self._slots.open(known.stored.payload if known else None, row.cached)
        if job.prompt_logprobs is not None:
            row.scored = score_prompt(self._slots, slot, job.prompt, job.prompt_logprobs)
        return row

    def _drawer(self, job: Job) -> Drawer:
        return drawer(job.sampling, job.top_logprobs, job.prompt, job.grammar)

    def step(self) -> list[Update]:
        """One more token for every row."""
        if not self._rows:
            return []
        return self._advance(0, self._slots.forward(0, [row.output[-1:] for row in self._rows]))

    def _known_prefix(self, job: Job) -> Match[KeysValues] | None:
        """What is kept of the prompt; its tokens are scored only where all of them are computed."""
        return self._prefixes.longest_prefix(job.prompt) if job.prompt_logprobs is None else None

    def fail(self, error: Exception) -> list[Update]:
        """Give up every row; the batch is empty and usable afterwards."""
        failed = [Update(row.job, end=error) for row in self._rows]
        self._rows.clear()
        self._slots.clear()
        return failed

    def _advance(self, first: int, logits_BV: Tensor) -> list[Update]:  # noqa: N803 - as at the top
        """One token more for the rows from `first` on; those that end with it, or are cancelled, leave."""
        drawn = draw(logits_BV, [row.drawer for row in self._rows[first:]], self._generator)
        ended = [self._add_token(row, token) for row, token in zip(self._rows[first:], drawn, strict=True)]
        updates: list[Update] = []
        for place in reversed(range(first, len(self._rows))):
            row, end = self._rows[place], ended[place - first]
            job = row.job
            if end is not None or (job.stream and not job.cancelled):
                updates.append(self._update(place, drawn[place - first], end))
            if end is None and not job.cancelled:
                continue
            moved = self._slots.close(place)
            self._rows[place] = self._rows[moved]
            self._rows.pop()
        return updates

    def _update(self, place: int, drawn: Drawn, end: str | Exception | None) -> Update:
        """What the pass brought to the row in `place`; the keys and values of a row that ends well are kept."""
        row = self._rows[place]
        job = row.job
        if not isinstance(end, str):
            return Update(job, drawn if end is None else None, end)
        self._prefixes.add([*job.prompt, *row.output[:-1]], self._slots.contents(place), row.reused)
        done = Completion(row.output, row.logprobs, end, len(job.prompt), row.cached, row.top, row.scored)
        return Update(job, drawn if job.stream else None, done)

    def _add_token(self, row: _Row, drawn: Drawn) -> str | Exception | None:
        """Add a token; returns why the row ends with it, None when it goes on."""
        walk = row.drawer.walk
        if walk is not None and walk.problem is not None:
            return BadRequest(f"the answer cannot follow its grammar: {walk.problem}", code="constraint_failed")
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


def _distinct(jobs: Sequence[Job]) -> tuple[list[Job], list[tuple[Job, int]]]:
    """The jobs whose prompts are computed, and the others, each with the place of the one that has its prompt.

    A prompt that is scored is computed for itself.
    """
    places: dict[tuple[int, ...], int] = {}
    distinct: list[Job] = []
    others: list[tuple[Job, int]] = []
    for job in jobs:
        place = len(distinct) if job.prompt_logprobs is not None else places.setdefault((*job.prompt,), len(distinct))
        if place == len(distinct):
            distinct.append(job)
        else:
            others.append((job, place))
    return distinct, others


def score_prompt(slots: Slots, slot: int, prompt: Sequence[int], candidates: int) -> list[Scored]:
    """Log-probabilities of the prompt's own tokens after the first, teacher-forced.

    Afterwards `slot`, which was empty, holds all but the last one.
    """
    scored: list[Scored] = []
    for start in range(0, len(prompt) - 1, CHUNK):
        ids = prompt[start : min(start + CHUNK, len(prompt) - 1)]
        targets = prompt[start + 1 : start + 1 + len(ids)]
        logp_TV = slots.forward_each(slot, ids).log_softmax(-1)
        logprob_T1 = logp_TV.gather(-1, logp_TV.new_tensor(targets).long()[:, None])
        ranks: list[int] = (logp_TV > logprob_T1).sum(-1).add(1).tolist()
        likely_TK, likely_ids_TK = logp_TV.topk(min(candidates, logp_TV.shape[-1]), dim=-1)
        logprobs: list[float] = logprob_T1[:, 0].tolist()
        tops = [list(zip(*row, strict=True)) for row in zip(likely_ids_TK.tolist(), likely_TK.tolist(), strict=True)]
        scored += [Scored(*figures) for figures in zip(targets, logprobs, ranks, tops, strict=True)]
    return scored
