"""Log-probabilities under a linear head, whose gradient is made while the logits of a chunk are there.

With respect to a token's logits its log-probability has one gradient, whatever the loss makes of it: its *slopes*
`(1[y] - softmax) * scale / temperature`. With respect to its hidden state that is `slopes @ W`. Where the head does not
learn, the forward pass keeps this vector, and the backward pass is a product with it: no logits are kept, and none
computed again. A head that learns needs the slopes: they are kept where one chunk holds all of them, else they are made
again, chunk by chunk.

Shapes: _N trained tokens, _C those of a chunk, _H hidden, _V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from ratchet.trainer_worker.training.learner.targets import Targets


@dataclass(frozen=True, slots=True)
class LinearHead:
    """How logits follow from hidden states."""

    weight_VH: Tensor
    bias_V: Tensor | None
    scale: float
    """What logits are multiplied by."""
    dtype: torch.dtype
    """What matrices are multiplied in, and what is kept has; sums over the vocabulary are in float32 at least."""
    chunk: int
    """Tokens whose logits are held at a time."""

    @property
    def learns(self) -> bool:
        """Whether it needs a gradient of its own."""
        return self.weight_VH.requires_grad or (self.bias_V is not None and self.bias_V.requires_grad)


def fused_scores(hidden_NH: Tensor, targets: Targets, head: LinearHead) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] of the targets, and entropies [N], which have no gradient.

    Kept for the backward pass, in the head's dtype: a vector [H] a token, or the slopes of a single chunk.
    """
    if torch.is_grad_enabled() and head.learns:
        return _UnderLearningHead.apply(hidden_NH, head.weight_VH, head.bias_V, targets, head)
    if torch.is_grad_enabled() and hidden_NH.requires_grad:
        return _UnderFixedHead.apply(hidden_NH, targets, head)
    return _scores(hidden_NH, targets, head, None)


class _UnderFixedHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, targets: Targets, head: LinearHead) -> tuple[Tensor, Tensor]:
        gradient_NH, weight_VH = torch.empty_like(hidden_NH, dtype=head.dtype), head.weight_VH.to(head.dtype)

        def keep(cut: slice, slopes_CV: Tensor) -> None:
            torch.mm(slopes_CV, weight_VH, out=gradient_NH[cut])

        logprobs_N, entropy_N = _scores(hidden_NH, targets, head, keep)
        ctx.save_for_backward(gradient_NH)
        ctx.dtype = hidden_NH.dtype
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable  # its untyped wrapper is no method of the base's shape
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, None]:
        (gradient_NH,) = ctx.saved_tensors
        return (gradient_NH * grad_outputs[0][:, None]).to(ctx.dtype), None, None


class _UnderLearningHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets: Targets, head: LinearHead
    ) -> tuple[Tensor, Tensor]:
        kept: list[Tensor] = []

        def keep(_: slice, slopes_CV: Tensor) -> None:
            kept.append(slopes_CV)

        logprobs_N, entropy_N = _scores(hidden_NH, targets, head, keep if len(hidden_NH) <= head.chunk else None)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, *kept)
        ctx.targets, ctx.head = targets, head
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - as above
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_NH, parameter_VH, bias_V, *kept = ctx.saved_tensors
        head: LinearHead = ctx.head
        to_hidden_NH, to_weight_VH = torch.empty_like(hidden_NH), torch.zeros_like(parameter_VH)
        to_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
        weight_VH, grad_N1 = parameter_VH.to(head.dtype), grad_outputs[0][:, None].to(head.dtype)

        def add(cut: slice, slopes_CV: Tensor) -> None:
            to_hidden_NH[cut] = (slopes_CV @ weight_VH) * grad_N1[cut]
            to_weight_VH.add_(slopes_CV.T @ (hidden_NH[cut].to(head.dtype) * grad_N1[cut]))
            if to_bias_V is not None:
                to_bias_V.add_((slopes_CV.T @ grad_N1[cut]).squeeze(-1))

        if kept:
            add(slice(None), kept[0])
        else:
            _scores(hidden_NH, ctx.targets, head, add)
        return to_hidden_NH, to_weight_VH, to_bias_V, None, None


def _scores(
    hidden_NH: Tensor, targets: Targets, head: LinearHead, take: Callable[[slice, Tensor], None] | None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies; `take` gets the slopes of each chunk."""
    weight_VH = head.weight_VH.detach().to(head.dtype)
    bias_V = None if head.bias_V is None else head.bias_V.detach().to(head.dtype)
    parts: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad(), torch.autocast(hidden_NH.device.type, enabled=False):
        for start in range(0, max(1, len(hidden_NH)), head.chunk):  # of no tokens there is a chunk too
            cut = slice(start, start + head.chunk)
            logits_CV = linear(hidden_NH[cut].to(head.dtype), weight_VH, bias_V)
            logits_CV = logits_CV.to(torch.promote_types(head.dtype, torch.float32))
            logprobs_C, entropy_C, slopes_CV = _chunk(logits_CV, targets.cut(cut), head.scale, slopes=take is not None)
            parts.append((logprobs_C, entropy_C))
            if take is not None and slopes_CV is not None:
                take(cut, slopes_CV.to(head.dtype))
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(logits_CV: Tensor, targets: Targets, scale: float, *, slopes: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-probabilities, entropies, and slopes if they are asked for. Two tables of the vocabulary at a time: this one
    is written over.
    """
    ids_C1, factor_C1 = targets.ids_N[:, None], (scale / targets.temperature_N)[:, None].to(logits_CV.dtype)
    shifted_CV = logits_CV.mul_(factor_C1)
    outside_CV = targets.outside(logits_CV.shape[-1])
    if outside_CV is not None:
        shifted_CV.masked_fill_(outside_CV, -torch.inf)
    shifted_CV.sub_(shifted_CV.amax(-1, keepdim=True))
    odds_CV = shifted_CV.exp()
    total_C1 = odds_CV.sum(-1, keepdim=True)
    logprobs_C = (shifted_CV.gather(-1, ids_C1) - total_C1.log()).squeeze(-1)
    if outside_CV is not None:
        shifted_CV.masked_fill_(outside_CV, 0.0)  # 0 log 0 is 0
    entropy_C = total_C1.log().squeeze(-1) - torch.einsum("cv,cv->c", odds_CV, shifted_CV) / total_C1.squeeze(-1)
    if not slopes:
        return logprobs_C, entropy_C, None
    slopes_CV = odds_CV.mul_(-factor_C1 / total_C1).scatter_add_(-1, ids_C1, factor_C1)
    if outside_CV is not None:
        slopes_CV.masked_fill_(outside_CV, 0.0)  # what came although it could not, or where nothing could
    return logprobs_C, entropy_C, slopes_CV
