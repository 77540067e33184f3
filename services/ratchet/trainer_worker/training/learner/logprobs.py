"""Log-probabilities of trained tokens under a causal model: only the positions that learn reach the vocabulary.

Shapes: _B rows, _T tokens, _N trained tokens of all rows (row by row), _H hidden, _V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.rows import Row

MIN_SHARED_PREFIX = 16
"""Tokens that all rows must have in common before running them once is worth a second forward pass."""

CHUNK_ELEMENTS = 1 << 25
"""Logits (tokens x vocabulary) held at a time; more are computed in chunks, again in the backward pass."""

HEAD_TOLERANCE = 0.02
"""Largest difference in nats between the scorer and the model's own logits; bf16 alone makes about 0.01."""

CPU_PASS_TOKENS, CUDA_PASS_TOKENS = 150, 4096
"""What one more forward and backward pass costs, in tokens that could be computed instead."""


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

    `share_prefix` runs a common prefix of all rows once and lets gradients flow through its keys and values.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        bf16: bool = False,
        share_prefix: bool = True,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> None:
        self.model = model
        wrapped: Any = model
        base: PreTrainedModel = wrapped.get_base_model() if hasattr(wrapped, "peft_config") else wrapped
        self._trunk: Any = base.get_decoder()
        self._head: Any = base.get_output_embeddings()
        config: Any = base.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        # Families name differently what they multiply their logits by.
        scaling: float | None = getattr(config, "logits_scaling", None)
        self._scale: float = 1.0 / scaling if scaling else getattr(config, "logit_scale", None) or 1.0
        self._bf16 = bf16
        self._chunk = max(1, chunk_elements // self._head.weight.shape[0])
        # A prefix can be run once where every layer keeps all keys and values.
        kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
        full = not getattr(config, "sliding_window", None) and all(kind == "full_attention" for kind in kinds)
        self._share = share_prefix and full and not base.is_activation_checkpointing

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._head.weight.device

    @property
    def hidden_size(self) -> int:
        """Width of the trunk's hidden states."""
        return self._head.weight.shape[1]

    def score(self, rows: Sequence[Row], *, entropy_gradient: bool = False) -> Scores:
        """Scores of every trained token of `rows`."""
        with self._autocast():
            hidden_NH = self._hidden_by_length(rows)
        targets_N = torch.tensor(
            [t for row in rows for t, learns in zip(row.token_ids, row.loss_mask, strict=True) if learns],
            device=self.device,
        )
        temperature_N = torch.tensor(
            [t for row in rows for t, learns in zip(row.temperatures, row.loss_mask, strict=True) if learns],
            device=self.device,
        )
        if len(targets_N) <= self._chunk:
            return Scores(hidden_NH, *self._logprobs(hidden_NH, targets_N, temperature_N, entropy_gradient))
        cuts = [slice(start, start + self._chunk) for start in range(0, len(targets_N), self._chunk)]
        parts = [
            checkpoint(
                self._logprobs,
                hidden_NH[cut],
                targets_N[cut],
                temperature_N[cut],
                entropy_gradient,
                use_reentrant=False,
            )
            for cut in cuts
        ]
        logprobs, entropies = zip(*parts, strict=True)
        return Scores(hidden_NH, torch.cat(logprobs), torch.cat(entropies))

    def _hidden_by_length(self, rows: Sequence[Row]) -> Tensor:
        """Hidden states in the order of `rows`, computed in groups of similar length so that little is padding."""
        overhead = CUDA_PASS_TOKENS if self.device.type == "cuda" else CPU_PASS_TOKENS
        groups = length_groups([len(row.token_ids) for row in rows], overhead)
        if len(groups) == 1:
            return self._hidden(rows)
        hidden: dict[int, Tensor] = {}
        for group in groups:
            members = [rows[index] for index in group]
            hidden |= zip(group, self._hidden(members).split([row.trained for row in members]), strict=True)
        return torch.cat([hidden[index] for index in range(len(rows))])

    def _hidden(self, rows: Sequence[Row]) -> Tensor:
        """Hidden states that predict the trained tokens of `rows`, from one pass."""
        shared = self.shared_prefix(rows)
        width = max(len(row.token_ids) for row in rows) - shared
        ids_BT = torch.zeros((len(rows), width), dtype=torch.long)
        for index, row in enumerate(rows):
            tail = row.token_ids[shared:]
            ids_BT[index, : len(tail)] = torch.tensor(tail)
        # Padding is on the right, where causal attention from real tokens never looks: no mask is needed.
        ids_BT = ids_BT.to(self.device)
        if shared:
            prefix = torch.tensor([rows[0].token_ids[:shared]], device=self.device)
            once: Any = self._trunk(input_ids=prefix, use_cache=True).past_key_values
            cache = DynamicCache()
            for index, layer in enumerate(once.layers):
                keys, values = (kept.expand(len(rows), -1, -1, -1) for kept in (layer.keys, layer.values))
                cache.update(keys, values, index)
            positions = torch.arange(shared, shared + width, device=self.device)[None]
            output = self._trunk(input_ids=ids_BT, past_key_values=cache, position_ids=positions, use_cache=True)
        else:
            output = self._trunk(input_ids=ids_BT, use_cache=False)
        hidden_BTH: Tensor = output.last_hidden_state
        pairs = [
            (index, position - shared - 1)
            for index, row in enumerate(rows)
            for position, learns in enumerate(row.loss_mask)
            if learns
        ]
        row_N, position_N = torch.tensor(pairs, device=self.device).T
        return hidden_BTH[row_N, position_N]

    def shared_prefix(self, rows: Sequence[Row]) -> int:
        """How many leading tokens are run once for all rows; 0 where that does not pay."""
        if not self._share or len(rows) < 2:
            return 0
        low, high = min(row.token_ids for row in rows), max(row.token_ids for row in rows)
        # The position before the first trained token must stay outside: its hidden state is needed.
        limit = min(len(low), len(high), *(row.loss_mask.index(True) - 1 for row in rows))
        shared = next((n for n in range(limit) if low[n] != high[n]), limit)
        return shared if shared >= MIN_SHARED_PREFIX else 0

    def _logprobs(
        self, hidden_NH: Tensor, targets_N: Tensor, temperature_N: Tensor, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        with self._autocast():
            logits_NV: Tensor = self._head(hidden_NH)
        logits_NV = logits_NV.float() * self._scale
        if self._softcap is not None:
            logits_NV = torch.tanh(logits_NV / self._softcap) * self._softcap
        all_NV = torch.log_softmax(logits_NV / temperature_N[:, None], -1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_N = -(all_NV.exp() * all_NV).sum(-1)
        return all_NV.gather(-1, targets_N[:, None]).squeeze(-1), entropy_N

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._bf16 else nullcontext()


def verify_head(scorer: Scorer, row: Row) -> float:
    """Largest difference between `scorer` and the model's own logits on one row, in nats."""
    with torch.no_grad():
        ids = torch.tensor([row.token_ids], device=scorer.device)
        logits: Tensor = scorer.model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        temperature = torch.tensor(row.temperatures[1:], device=scorer.device)
        own = torch.log_softmax(logits / temperature[:, None], -1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        learns = torch.tensor(row.loss_mask[1:], device=scorer.device)
        return float((own[learns] - scorer.score([row]).logprobs_N).abs().max())


def check_head(scorer: Scorer, rows: Sequence[Row]) -> None:
    """Raise `DataUnusable` when `scorer` and the model itself disagree on the shortest of `rows`.

    Models may change their logits in ways that `Scorer` does not know.
    """
    difference = verify_head(scorer, min(rows, key=lambda row: len(row.token_ids)))
    if difference > HEAD_TOLERANCE:
        raise DataUnusable(f"the model changes its logits in a way the learner does not know ({difference:.3f} nats)")


def length_groups(lengths: Sequence[int], overhead: int) -> list[list[int]]:
    """Indices in one, two, four or eight groups of similar length, whichever needs the fewest tokens, padding included.

    One group keeps the given order.
    """
    best, order = [list(range(len(lengths)))], sorted(range(len(lengths)), key=lengths.__getitem__)
    least = overhead + len(lengths) * max(lengths)
    for count in (2, 4, 8):
        size = math.ceil(len(order) / count)
        groups = [order[begin : begin + size] for begin in range(0, len(order), size)]
        tokens = sum(overhead + len(group) * lengths[group[-1]] for group in groups)
        if tokens < least:
            best, least = groups, tokens
    return best
