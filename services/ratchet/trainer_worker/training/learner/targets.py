"""What a head is asked about each hidden state: which token came, at which temperature, among which others.

Shapes: _N trained tokens, _V vocabulary, _U different masks, _W 32-bit words of a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ratchet.core.grammars.walk import allowed
from ratchet.trainer_worker.training.learner.masks import Allowed
from ratchet.trainer_worker.training.learner.rows import Row


@dataclass(frozen=True, slots=True)
class Targets:
    """Of some tokens that learn."""

    ids_N: Tensor
    temperature_N: Tensor
    masks: tuple[Tensor, Tensor] | None = None
    """Different masks [U, W], and which of them each token has [N]; None: all tokens could have been drawn."""

    def cut(self, part: slice) -> Targets:
        """Of some of them."""
        masks = self.masks and (self.masks[0], self.masks[1][part])
        return Targets(self.ids_N[part], self.temperature_N[part], masks)

    def outside(self, vocabulary: int) -> Tensor | None:
        """Tokens that could not have been drawn [N, V]; None where all could."""
        return None if self.masks is None else ~allowed(self.masks[0][self.masks[1]], vocabulary)


def targets_of(rows: Sequence[Row], device: torch.device) -> Targets:
    """Those of all tokens that learn, row by row."""
    return Targets(
        ids_N=torch.tensor(np.concatenate([row.trained_ids for row in rows]), device=device).long(),
        temperature_N=torch.tensor(np.concatenate([row.temperatures for row in rows]), device=device),
        masks=_masks([mask for row in rows for mask in row.trained_masks], device),
    )


def _masks(masks_N: Allowed, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """See `Targets.masks`; the first allows all."""
    known = {id(mask): mask for mask in masks_N if mask is not None}
    if not known:
        return None
    place = {one: index for index, one in enumerate(known, 1)}
    masks_UW = torch.stack([torch.full_like(next(iter(known.values())), -1), *known.values()])
    which_N = torch.tensor([0 if mask is None else place[id(mask)] for mask in masks_N])
    return masks_UW.to(device), which_N.to(device)
