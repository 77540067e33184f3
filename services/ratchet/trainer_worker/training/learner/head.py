"""The head of a model: from hidden states to the log-probabilities of targets, a few logits at a time.

Shapes: _N trained tokens, _H hidden, _V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ratchet.trainer_worker.training.learner.fused_head import LinearHead, fused_scores
from ratchet.trainer_worker.training.learner.targets import Targets

CHUNK_ELEMENTS = 1 << 25
"""Logits (tokens x vocabulary) held at a time."""


class Head:
    """The vocabulary's head of `base`, a causal LM without wrappers, or the scalar head of a reward model."""

    def __init__(self, base: Any, *, bf16: bool, chunk_elements: int = CHUNK_ELEMENTS) -> None:
        """`bf16`: whether it is called under autocast to it."""
        self.module: Any = head_of(base)
        config: Any = base.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        # Families name differently what they multiply their logits by.
        scaling: float | None = getattr(config, "logits_scaling", None)
        self._scale: float = 1.0 / scaling if scaling else getattr(config, "logit_scale", None) or 1.0
        self._bf16 = bf16
        self._chunk = max(1, chunk_elements // self.vocabulary)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.module.weight.device

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return self.module.weight.shape[0]

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return self.module.weight.shape[1]

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """As the model itself gives them; float32."""
        logits_NV: Tensor = self.module(hidden_NH).float() * self._scale
        return logits_NV if self._softcap is None else torch.tanh(logits_NV / self._softcap) * self._softcap

    def scores(self, hidden_NH: Tensor, targets: Targets, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N] of `targets`, and entropies [N], with a gradient if one is asked for."""
        linear = None if entropy_gradient else self.linear()
        if linear is None:
            return self.plain_scores(hidden_NH, targets, entropy_gradient)
        return fused_scores(hidden_NH, targets, linear)

    def linear(self) -> LinearHead | None:
        """The head, where logits are a product with it: not capped or adapted."""
        module: Any = self.module
        plain = type(module) is nn.Linear and type(module.weight) is nn.Parameter  # neither a class derived from it
        if not plain or self._softcap is not None:
            return None
        dtype = torch.bfloat16 if self._bf16 else module.weight.dtype
        return LinearHead(module.weight, module.bias, self._scale, dtype, self._chunk)

    def plain_scores(
        self, hidden_NH: Tensor, targets: Targets, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """`scores` by autograd alone, under any head: logits of several chunks are made again for the backward pass."""
        if len(hidden_NH) <= self._chunk:
            return self._chunk_scores(hidden_NH, targets, entropy_gradient)
        cuts = [slice(start, start + self._chunk) for start in range(0, len(hidden_NH), self._chunk)]
        parts = [
            checkpoint(self._chunk_scores, hidden_NH[cut], targets.cut(cut), entropy_gradient, use_reentrant=False)
            for cut in cuts
        ]
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _chunk_scores(self, hidden_NH: Tensor, targets: Targets, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        logits_NV = self.logits(hidden_NH)
        outside_NV = targets.outside(self.vocabulary)
        if outside_NV is not None:
            logits_NV = logits_NV.masked_fill(outside_NV, -torch.inf)
        all_NV = torch.log_softmax(logits_NV / targets.temperature_N[:, None], -1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            finite_NV = all_NV if outside_NV is None else all_NV.masked_fill(outside_NV, 0.0)  # 0 log 0 is 0
            entropy_N = -(all_NV.exp() * finite_NV).sum(-1)
        return all_NV.gather(-1, targets.ids_N[:, None]).squeeze(-1), entropy_N


def head_of(base: Any) -> Any:
    """What turns the hidden states of `base` into answers: the scalar head of a reward model, else the vocabulary's."""
    score = getattr(base, "score", None)
    return base.get_output_embeddings() if score is None else score
