"""Drawing the next token of many rows at once, each with its own temperature, bounds and seed.

Shapes: B rows, V vocabulary, K stretches of S tokens.
"""

# ruff: noqa: N803, N806 - names of tensors end in their shape

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from ratchet.core.grammars.walk import Grammar, Walk, mask_logits, open_mask
from ratchet.local.engine_local.domain.answers import Drawn
from ratchet.local.engine_local.domain.requests import Sampling

STRIDE = 256
"""Tokens whose probabilities are summed before one of them is looked for."""


class TokenCounts:
    """How often each token occurs in prompt and answer, for penalties. V vocabulary."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._known_V: Tensor | None = None
        self._counts_V: Tensor | None = None

    def add(self, token: int) -> None:
        """One more token of the answer."""
        if self._counts_V is not None and self._known_V is not None:
            self._counts_V[token] += 1
            self._known_V[token] = True

    def penalised(self, logits_V: Tensor, sampling: Sampling) -> Tensor:
        """The logits with the penalties of `sampling`, in the order in which vLLM applies them."""
        if self._counts_V is None or self._known_V is None:
            self._counts_V = torch.zeros_like(logits_V)
            self._known_V = torch.zeros_like(logits_V, dtype=torch.bool)
            self._known_V[torch.tensor(self._prompt, dtype=torch.long)] = True
        scale = sampling.repetition_penalty
        repeated_V = torch.where(logits_V > 0, logits_V / scale, logits_V * scale)
        logits_V = torch.where(self._known_V, repeated_V, logits_V)
        logits_V = logits_V - sampling.frequency_penalty * self._counts_V
        return logits_V - sampling.presence_penalty * (self._counts_V > 0)


@dataclass(frozen=True, slots=True)
class Drawer:
    """How one row draws. `generator` is its own when the request gave a seed."""

    sampling: Sampling
    generator: torch.Generator | None = None
    top_logprobs: int = 0
    counts: TokenCounts | None = None
    """Counts of the tokens so far, for a request with penalties."""
    walk: Walk | None = None
    """Through the grammar that the answer follows."""


def drawer(
    sampling: Sampling, top_logprobs: int = 0, prompt: Sequence[int] = (), grammar: Grammar | None = None
) -> Drawer:
    """The drawer of a new request."""
    own = None if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
    counts = TokenCounts(prompt) if sampling.penalised else None
    walk = None if grammar is None else grammar.walk(sampling.stop_token_ids)
    return Drawer(sampling, own, top_logprobs, counts, walk)


def draw(logits_BV: Tensor, drawers: Sequence[Drawer], shared: torch.Generator) -> list[Drawn]:
    """One token per row; NaN as log-probability where a grammar allows none.

    The distribution is softmax(penalised logits / temperature) over the tokens that the row's grammar allows, within
    top_k, top_p and min_p, renormalised; at temperature 0 the most likely token, with its log-probability at
    temperature 1 (as vLLM reports it). Tokens are drawn by inverting the cumulative distribution with one uniform
    number per row, so rows with seeds do not depend on their neighbours.
    """
    if any(row.counts is not None for row in drawers):
        rows = [
            logits_V if row.counts is None else row.counts.penalised(logits_V, row.sampling)
            for logits_V, row in zip(logits_BV, drawers, strict=True)
        ]
        logits_BV = torch.stack(rows)
    logits_BV = _masked(logits_BV, drawers)
    greedy_B1 = torch.tensor([[row.sampling.temperature == 0] for row in drawers])
    temperature_B1 = torch.tensor([[row.sampling.temperature or 1.0] for row in drawers])
    scaled_BV = _bounded(logits_BV / temperature_B1, drawers)
    logp_BV = torch.log_softmax(scaled_BV, dim=-1)
    token_B1 = _inverted(logp_BV, _uniform(drawers, shared))
    if bool(greedy_B1.any()):
        token_B1 = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), token_B1)
    logprob_B: list[float] = logp_BV.gather(-1, token_B1)[:, 0].tolist()
    tokens: list[int] = token_B1[:, 0].tolist()
    for token, row in zip(tokens, drawers, strict=True):
        if row.counts is not None:
            row.counts.add(token)
        if row.walk is not None:
            row.walk.accept(token)
    return [
        Drawn(token, logprob, _top(logp_BV[row], drawer.top_logprobs))
        for row, (token, logprob, drawer) in enumerate(zip(tokens, logprob_B, drawers, strict=True))
    ]


def _masked(logits_BV: Tensor, drawers: Sequence[Drawer]) -> Tensor:
    """Minus infinity outside the grammars of the rows that have one."""
    rows = [(row, drawer.walk) for row, drawer in enumerate(drawers) if drawer.walk is not None]
    if not rows:
        return logits_BV
    mask_BW = open_mask(*logits_BV.shape)
    for row, walk in rows:
        walk.allow(mask_BW, row)
    return mask_logits(logits_BV, mask_BW, [row for row, _ in rows])


def _inverted(logp_BV: Tensor, uniform_B1: Tensor) -> Tensor:
    """The tokens at these places of the cumulative distributions, [B, 1].

    Sums of `STRIDE` tokens say in which stretch a place lies, so that only one stretch is summed token by token.
    """
    rows, vocabulary = logp_BV.shape
    p_BKS = F.pad(logp_BV.exp(), (0, -vocabulary % STRIDE)).view(rows, -1, STRIDE)
    each_BK = p_BKS.sum(-1, dtype=torch.float64)
    below_BK = each_BK.cumsum(-1)
    place_B1 = uniform_B1 * below_BK[:, -1:]
    # NaN compares with nothing, hence the bounds; the caller sees its log-probability.
    stretch_B1 = torch.searchsorted(below_BK, place_B1, right=True).clamp(max=below_BK.shape[-1] - 1)
    within_BS = p_BKS[torch.arange(rows), stretch_B1[:, 0]].double().cumsum(-1)
    place_B1 = place_B1 - (below_BK - each_BK).gather(-1, stretch_B1)
    # Sums in another order differ in the last bit: a place behind the last token that has a probability is at it.
    last_B1 = torch.nextafter(within_BS[:, -1:], torch.zeros_like(place_B1))
    inside_B1 = torch.searchsorted(within_BS, torch.minimum(place_B1, last_B1), right=True)
    return (stretch_B1 * STRIDE + inside_B1).clamp(max=vocabulary - 1)


def _uniform(drawers: Sequence[Drawer], shared: torch.Generator) -> Tensor:
    """One number in [0, 1) per row, [B, 1]."""
    number_B1 = torch.rand(len(drawers), 1, dtype=torch.float64, generator=shared)
    for row, drawer in enumerate(drawers):
        if drawer.generator is not None:
            number_B1[row] = torch.rand(1, dtype=torch.float64, generator=drawer.generator)
    return number_B1


def _bounded(scaled_BV: Tensor, drawers: Sequence[Drawer]) -> Tensor:
    """Minus infinity outside top_k, top_p and min_p; greedy rows are left alone."""
    for row, drawer in enumerate(drawers):
        sampling = drawer.sampling
        if not sampling.temperature or not (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
            continue
        ordered_V, order_V = scaled_BV[row].sort(descending=True)
        if sampling.top_k:
            ordered_V[sampling.top_k :] = -torch.inf
        p_V = ordered_V.softmax(-1)
        before_V = p_V.cumsum(-1) - p_V
        ordered_V[(before_V >= sampling.top_p) | (p_V < sampling.min_p * p_V[0])] = -torch.inf
        scaled_BV[row] = torch.empty_like(ordered_V).scatter_(-1, order_V, ordered_V)
    return scaled_BV


def _top(logp_V: Tensor, count: int) -> Sequence[tuple[int, float]]:
    if not count:
        return ()
    values, ids = logp_V.topk(min(count, logp_V.shape[-1]))
    return [
        (token, logprob) for token, logprob in zip(ids.tolist(), values.tolist(), strict=True) if logprob > -math.inf
    ]
