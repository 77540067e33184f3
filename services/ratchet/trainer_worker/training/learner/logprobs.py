"""Log-probabilities of trained tokens under a causal model: only the positions that learn reach the vocabulary.

Shapes: _B rows, _T tokens, _N trained tokens of all rows (row by row), _H hidden, _V vocabulary.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.backbone import Backbone, attends_to_all, base_of
from ratchet.trainer_worker.training.learner.head import CHUNK_ELEMENTS, Head
from ratchet.trainer_worker.training.learner.passes import Item, computed, item_of, plan_passes, run_once
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.learner.targets import targets_of
from ratchet.trainer_worker.training.ranks import ALONE, Ranks

CPU_PASS_TOKENS, CUDA_PASS_TOKENS = 150, 4096
"""What one more forward and backward pass costs, in tokens that could be computed instead."""

CPU_ACTIVATIONS = 2 << 30
"""Bytes of activations that a pass may keep for its backward pass on a CPU, whose memory others use too."""
CUDA_SHARE = 0.7
"""Share of a GPU's memory, without weights and optimizer, that activations may take."""
TRAINABLE_BYTES = 12
"""Of gradient and optimizer per trainable weight."""
MOST_PASS_TOKENS = 65_536
"""More in a pass make nothing faster."""
RECOMPUTED_SHARE = 0.1
"""Memory of a layer that is recomputed, as a share of what it takes otherwise: little more than its input."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two computations of the same log-probabilities may be apart, in nats."""

    mean: float
    worst: float
    tokens: int
    """Trained tokens that they are compared on: the mean of few is rounding, or of answers that are certain anyway."""


HEAD_TOLERANCE = {torch.float32: Tolerance(1e-4, 2e-3, 4), torch.bfloat16: Tolerance(0.08, 0.8, 64)}
"""Between the scorer and the model's own logits, by what both compute in."""
HEAD_ROWS = 8
"""That they are compared on at most."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the trained tokens, in row order."""

    hidden_NH: Tensor
    """Hidden states that predict them."""
    logprobs_N: Tensor
    """float32, after division by each token's temperature."""
    entropy_N: Tensor
    """Entropy of the distributions they were drawn from."""


class Scorer:
    """Runs rows through `model` (a causal LM, possibly wrapped by PEFT).

    Everything that computes log-probabilities of a policy goes through here, so all of it is computed alike: under one
    autocast, without any dropout of the base. What `passes` puts together runs a common beginning once and lets
    gradients flow through its keys and values.
    """

    def __init__(  # noqa: PLR0913 - options by name, each with a default
        self,
        model: nn.Module,
        *,
        bf16: bool = False,
        lora_dropout: bool = True,
        pass_tokens: int | None = None,
        share_prefix: bool = True,
        chunk_elements: int = CHUNK_ELEMENTS,
        ranks: Ranks = ALONE,
    ) -> None:
        """`lora_dropout`: whether an adapter's own dropout is active where gradients are asked for. `pass_tokens`: see
        `Hyperparameters`; None: what the device's memory holds,
        which is never exceeded. `ranks`: who takes which pass.
        """
        self.ranks = ranks
        self.model = model
        base = base_of(model)
        self._head = Head(base, bf16=bf16, chunk_elements=chunk_elements)
        self._backbone = Backbone(base, lora_dropout=lora_dropout)
        config: Any = base.config.get_text_config()
        self._bf16 = bf16
        self._overhead = CUDA_PASS_TOKENS if self.device.type == "cuda" else CPU_PASS_TOKENS
        self._share = share_prefix and attends_to_all(config)
        self._asked_tokens = pass_tokens

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._head.device

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return self._head.vocabulary

    @property
    def hidden_size(self) -> int:
        """Width of the backbone's hidden states."""
        return self._head.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return torch.bfloat16 if self._bf16 else torch.float32

    @cached_property
    def pass_tokens(self) -> int:
        """Tokens of a pass whose activations fit into memory while all are kept; no more than were asked for."""
        room = CPU_ACTIVATIONS
        if self.device.type == "cuda":
            weights = list(self.model.parameters())
            held = sum(weight.numel() * weight.element_size() for weight in weights)
            held += TRAINABLE_BYTES * sum(weight.numel() for weight in weights if weight.requires_grad)
            # Of the whole memory, not of what is free: the same job makes the same passes, however often it is resumed.
            room = CUDA_SHARE * max(0, torch.cuda.get_device_properties(self.device).total_memory - held)
        with self.autocast():
            token_bytes = self._backbone.token_bytes()
        own = max(1, min(self._asked_tokens or MOST_PASS_TOKENS, int(room / max(1.0, token_bytes))))
        return min(self.ranks.gather(own))

    def passes(self, items: Sequence[Sequence[Row]]) -> Iterator[list[int]]:
        """Indices of `items`, pass by pass; the rows of an item stay together.

        A pass has at most `pass_tokens` tokens, padding included, or is a single item. Of several ranks each gets the
        passes that it has to run, which may be none.
        """
        planned = [item_of(rows) for rows in items]
        passes = plan_passes(planned, budget=self.pass_tokens, overhead=self._overhead, share=self._share)
        if self.ranks.alone:
            yield from passes
            return
        # One pass may hold all that there is: each rank gets about as much as every other.
        budget = min(self.pass_tokens, math.ceil(sum(self._tokens(planned, passes)) / self.ranks.count))
        passes = plan_passes(planned, budget=budget, overhead=self._overhead, share=self._share)
        costs = [tokens + self._overhead for tokens in self._tokens(planned, passes)]
        yield from (passes[index] for index in self.ranks.share(costs))

    def score(self, rows: Sequence[Row], *, entropy_gradient: bool = False) -> Scores:
        """Scores of every trained token of `rows`, in one pass."""
        with self.autocast():
            hidden_NH = self._hidden(rows)
            targets = targets_of(rows, self.device)
            return Scores(hidden_NH, *self._head.scores(hidden_NH, targets, entropy_gradient=entropy_gradient))

    def rewards(self, rows: Sequence[Row]) -> Tensor:
        """What the scalar head of a reward model says at each token that `rows` name as read; float32, in one pass.

        The head is small and its differences are what counts: it is computed in float32.
        """
        with self.autocast():
            hidden_NH = self._hidden(rows)
        with torch.autocast(self.device.type, enabled=False):
            return self._head.module(hidden_NH.float()).squeeze(-1)

    def shared_prefix(self, rows: Sequence[Row]) -> int:
        """How many leading tokens of a pass are run once for all its rows; 0 where that does not pay."""
        if not self._share or len(rows) < 2:
            return 0
        return run_once(len(item_of(rows).beginning), len(rows), self._overhead)

    def recomputed(self, tokens: int) -> float:
        """Share of the layers that are recomputed, so that a pass of `tokens` takes the memory of `pass_tokens`."""
        return min(1.0, max(0.0, 1 - self.pass_tokens / tokens) / (1 - RECOMPUTED_SHARE))

    @torch.no_grad()
    def next_logprobs(self, token_ids: Sequence[int]) -> Tensor:
        """Log-probabilities [V] of what follows `token_ids`, at temperature 1."""
        with self.autocast():
            hidden_BTH = self._backbone.hidden(torch.tensor([token_ids], device=self.device))
            return torch.log_softmax(self._head.logits(hidden_BTH[0, -1:]), -1)[0]

    def autocast(self) -> AbstractContextManager[Any]:
        """What every pass is computed under."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def _tokens(self, items: Sequence[Item], passes: Sequence[Sequence[int]]) -> list[int]:
        return [computed([items[index] for index in part], self._overhead, share=self._share) for part in passes]

    def _hidden(self, rows: Sequence[Row]) -> Tensor:
        """Hidden states that predict the trained tokens of `rows`, from one pass."""
        shared = self.shared_prefix(rows)
        width = max(row.length for row in rows) - shared
        ids_BT = torch.zeros((len(rows), width), dtype=torch.long)
        for index, row in enumerate(rows):
            tail = row.token_ids[shared:]
            ids_BT[index, : len(tail)] = torch.tensor(tail)
        ids_BT = ids_BT.to(self.device)
        recomputed = self.recomputed(shared + ids_BT.numel()) if torch.is_grad_enabled() else 0.0
        if shared:
            beginning_S = torch.tensor(rows[0].token_ids[:shared], device=self.device).long()
            hidden_BTH = self._backbone.hidden_behind(beginning_S, ids_BT, recomputed)
        else:
            hidden_BTH = self._backbone.hidden(ids_BT, recomputed)
        row_N = torch.arange(len(rows)).repeat_interleave(torch.tensor([row.trained for row in rows]))
        position_N = torch.tensor(np.concatenate([row.trained_at for row in rows]) - shared - 1)
        return hidden_BTH[row_N.to(self.device), position_N.to(self.device)]


@torch.no_grad()
def verify_head(scorer: Scorer, row: Row, counts: Sequence[int]) -> list[Tensor]:
    """For each of `counts` the differences [N] between `scorer`, so many times `row` in one pass, and the model's own
    logits, in nats; masks apart.
    """
    free = replace(row, masks=())
    scorer.model.eval()
    ids_1T = torch.tensor(row.token_ids[None], device=scorer.device).long()
    with scorer.autocast():
        logits_TV: Tensor = scorer.model(input_ids=ids_1T, use_cache=False).logits[0, :-1].float()
    learns_T = torch.tensor(row.loss_mask[1:], device=scorer.device)
    temperature_N = torch.tensor(row.temperatures, device=scorer.device)
    own_NV = torch.log_softmax(logits_TV[learns_T] / temperature_N[:, None], -1)
    own_N = own_NV.gather(-1, ids_1T[0, 1:][learns_T][:, None]).squeeze(-1)
    return [(own_N.repeat(count) - scorer.score([free] * count).logprobs_N).abs() for count in counts]


def check_head(scorer: Scorer, rows: Sequence[Row]) -> None:
    """Raise `DataUnusable` when `scorer` and the model itself disagree on the shortest of `rows`, each alone or behind
    a beginning that is run once; on several where one has few tokens.

    Models may change their logits, or look at earlier tokens, in ways that the learner does not know.
    """
    shortest, *others = heapq.nsmallest(HEAD_ROWS, rows, key=lambda row: row.length)
    tolerance = HEAD_TOLERANCE[scorer.dtype]
    judged = [shortest]
    for row in others:
        if sum(row.trained for row in judged) < tolerance.tokens:
            judged.append(row)
    counts = [1, *(count for count in (2, 8, 32) if scorer.shared_prefix([shortest] * count))][:2]
    differences = zip(*(verify_head(scorer, row, counts) for row in judged), strict=True)
    for parts, what in zip(differences, ("changes its logits", "looks at earlier tokens"), strict=False):
        apart = torch.cat(parts)
        mean, worst = float(apart.mean()), float(apart.max())
        if not (mean <= tolerance.mean and worst <= tolerance.worst):
            raise DataUnusable(
                f"the model {what} in a way the learner does not know: log-probabilities differ by {mean:.3f} nats in "
                f"the mean and {worst:.3f} at most; {tolerance.mean:g} and {tolerance.worst:g} are allowed"
            )
