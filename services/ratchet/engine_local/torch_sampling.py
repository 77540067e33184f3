"""Drawing the next token of many rows at once, each with its own temperature, bounds and seed.

Shapes: B rows, V vocabulary.
"""

# ruff: noqa: N803, N806 - names of tensors end in their shape

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.engine_local.domain.requests import Sampling


@dataclass(frozen=True, slots=True)
class Drawer:
    """How one row draws. `generator` is its own when the request gave a seed."""

    sampling: Sampling
    generator: torch.Generator | None = None
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token: its id, its log-probability under the distribution drawn from, and the most likely others."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


def drawer(sampling: Sampling, top_logprobs: int = 0) -> Drawer:
    """The drawer of a new request."""
    if sampling.seed is None:
        return Drawer(sampling, None, top_logprobs)
    return Drawer(sampling, torch.Generator().manual_seed(sampling.seed), top_logprobs)


def draw(logits_BV: Tensor, drawers: Sequence[Drawer], shared: torch.Generator) -> list[Drawn]:
    """One token per row.

    The distribution is softmax(logits / temperature) within top_k and top_p, renormalised; at temperature 0 the
    most likely token, with its log-probability at temperature 1 (as vLLM reports it). Tokens are drawn by inverting
    the cumulative distribution with one uniform number per row, so rows with seeds do not depend on their neighbours.
    """
    greedy_B1 = torch.tensor([[one.sampling.temperature == 0] for one in drawers])
    temperature_B1 = torch.tensor([[one.sampling.temperature or 1.0] for one in drawers])
    scaled_BV = _bounded(logits_BV / temperature_B1, drawers)
    logp_BV = torch.log_softmax(scaled_BV, dim=-1)
    below_BV = logp_BV.exp().double().cumsum(-1)
    drawn_B1 = torch.searchsorted(below_BV, _uniform(drawers, shared) * below_BV[:, -1:], right=True)
    drawn_B1 = drawn_B1.clamp(max=logits_BV.shape[-1] - 1)  # NaN compares with nothing; the caller sees its logprob
    token_B1 = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), drawn_B1)
    logprob_B: list[float] = logp_BV.gather(-1, token_B1)[:, 0].tolist()
    tokens: list[int] = token_B1[:, 0].tolist()
    return [
        Drawn(token, logprob, _top(logp_BV[row], one.top_logprobs))
        for row, (token, logprob, one) in enumerate(zip(tokens, logprob_B, drawers, strict=True))
    ]


def _uniform(drawers: Sequence[Drawer], shared: torch.Generator) -> Tensor:
    """One number in [0, 1) per row, [B, 1]."""
    number_B1 = torch.rand(len(drawers), 1, dtype=torch.float64, generator=shared)
    for row, one in enumerate(drawers):
        if one.generator is not None:
            number_B1[row] = torch.rand(1, dtype=torch.float64, generator=one.generator)
    return number_B1


def _bounded(scaled_BV: Tensor, drawers: Sequence[Drawer]) -> Tensor:
    """Minus infinity outside top_k and top_p; greedy rows are left alone."""
    for row, one in enumerate(drawers):
        sampling = one.sampling
        if sampling.temperature and (sampling.top_k or sampling.top_p < 1):
            scaled_BV[row] = _bounded_row(scaled_BV[row], sampling)
    return scaled_BV


def _bounded_row(scaled_V: Tensor, sampling: Sampling) -> Tensor:
    ordered_V, order_V = scaled_V.sort(descending=True)
    if sampling.top_k:
        ordered_V[sampling.top_k :] = -torch.inf
    p_V = ordered_V.softmax(-1)
    before_V = p_V.cumsum(-1) - p_V
    ordered_V[before_V >= sampling.top_p] = -torch.inf
    return torch.empty_like(scaled_V).scatter_(-1, order_V, ordered_V)


def _top(logp_V: Tensor, count: int) -> Sequence[tuple[int, float]]:
    if not count:
        return ()
    values, ids = logp_V.topk(min(count, logp_V.shape[-1]))
    return list(zip(ids.tolist(), values.tolist(), strict=True))
