"""Following a grammar token by token: which tokens may come next.

Shapes: B rows, V vocabulary, W 32-bit words of a mask.
"""

# ruff: noqa: N803, N806 - names of tensors end in their shape

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import xgrammar
from torch import Tensor

ANSWER_CPU_S = 2.0
"""Seconds of processor time for the masks of one answer. Usual grammars take a ten-thousandth of a second for a token;
an ambiguous one takes ever longer, and all answers of a batch wait for it."""


class Grammar:
    """A compiled grammar for one vocabulary."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, size: int, ends: Sequence[int]) -> None:
        self._compiled = compiled
        self.size = size
        """Number of logits."""
        self._ends = ends
        self.costly = False
        """One of its answers took too much processor time: no other one is begun."""

    def walk(self, stop_token_ids: Sequence[int] = (), cpu_s: float = ANSWER_CPU_S) -> Walk:
        """Begin an answer. `stop_token_ids`: tokens that may end it, beside the model's own."""
        stops = sorted({*self._ends, *(token for token in stop_token_ids if token < self.size)})
        return Walk(self, xgrammar.GrammarMatcher(self._compiled, override_stop_tokens=stops), cpu_s)


class Walk:
    """One answer on its way through a grammar."""

    def __init__(self, grammar: Grammar, matcher: xgrammar.GrammarMatcher, cpu_s: float) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._cpu_s = cpu_s
        self._spent_s = 0.0
        self.problem: str | None = None
        """Why it cannot go on: the grammar has no way out, or takes too long."""

    def allow(self, mask_BW: Tensor, row: int) -> None:
        """Write into a row of the mask which tokens may come next, one bit each."""
        if self._matcher.is_terminated():
            self.problem = "the answer has ended"
            return
        began = time.thread_time()
        self._matcher.fill_next_token_bitmask(mask_BW, row)
        self._spend(began)
        if not mask_BW[row].any():
            self.problem = "the grammar allows no token here"

    def accept(self, token: int) -> bool:
        """Go on with a token. False when the grammar does not allow it."""
        began = time.thread_time()
        accepted = self._matcher.accept_token(token)
        self._spend(began)
        return accepted

    def _spend(self, began: float) -> None:
        self._spent_s += time.thread_time() - began
        if self._spent_s > self._cpu_s:
            self._grammar.costly = True
            self.problem = f"following the grammar takes more than {self._cpu_s:g} s"


def open_mask(rows: int, size: int) -> Tensor:
    """A mask [B, W] that allows every token."""
    return xgrammar.allocate_token_bitmask(rows, size)


def mask_logits(logits_BV: Tensor, mask_BW: Tensor, rows: Sequence[int]) -> Tensor:
    """A copy of the logits, which lie on a CPU, with minus infinity in these rows for tokens outside the mask."""
    masked_BV = logits_BV.clone()
    xgrammar.apply_token_bitmask_inplace(masked_BV, mask_BW, indices=list(rows))
    return masked_BV


def allowed(mask_BW: Tensor, size: int) -> Tensor:
    """A mask as booleans [B, V], on the mask's device."""
    bits = torch.arange(32, device=mask_BW.device, dtype=torch.int32)
    return ((mask_BW[:, :, None] >> bits) & 1).bool().flatten(1)[:, :size]
