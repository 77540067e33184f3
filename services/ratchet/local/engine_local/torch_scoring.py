"""Log-probabilities of a prompt's own tokens, teacher-forced through the slots that also generate.

Shapes: T new tokens, V vocabulary, K candidates.
"""

# ruff: noqa: N806 - names of tensors end in their shape

from __future__ import annotations

from collections.abc import Sequence

from ratchet.local.engine_local.domain.answers import Scored
from ratchet.local.engine_local.torch_slots import Slots

CHUNK = 64
"""Tokens scored at once: a matrix of all tokens of a long prompt and a large vocabulary would take gigabytes."""


def score_prompt(slots: Slots, slot: int, prompt: Sequence[int], candidates: int) -> list[Scored]:
    """The tokens after the first. Afterwards `slot`, which was empty, holds all but the last one."""
    scored: list[Scored] = []
    for start in range(0, len(prompt) - 1, CHUNK):
        ids = prompt[start : min(start + CHUNK, len(prompt) - 1)]
        scored += _scored(slots, slot, ids, prompt[start + 1 : start + 1 + len(ids)], candidates)
    return scored


def _scored(slots: Slots, slot: int, ids: Sequence[int], targets: Sequence[int], candidates: int) -> list[Scored]:
    logp_TV = slots.forward_each(slot, ids).log_softmax(-1)
    targets_T1 = logp_TV.new_tensor(targets).long()[:, None]
    logprob_T1 = logp_TV.gather(-1, targets_T1)
    ranks: list[int] = (logp_TV > logprob_T1).sum(-1).add(1).tolist()
    likely_TK, likely_ids_TK = logp_TV.topk(min(candidates, logp_TV.shape[-1]), dim=-1)
    logprobs: list[float] = logprob_T1[:, 0].tolist()
    tops = [list(zip(*row, strict=True)) for row in zip(likely_ids_TK.tolist(), likely_TK.tolist(), strict=True)]
    return [Scored(*one) for one in zip(targets, logprobs, ranks, tops, strict=True)]
