"""Rows with everything that stays the same during an update; stored in checkpoints, since later weights differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.rows import Row

FIXED = "fixed.safetensors"


@dataclass(frozen=True, slots=True)
class FixedRows:
    """Each column has one CPU tensor per row, over the row's trained tokens."""

    rows: Sequence[Row]
    proximal: Sequence[Tensor]
    advantages: Sequence[Tensor]
    reference: Sequence[Tensor] | None = None
    values: Sequence[Tensor] | None = None
    """The critic's estimates before the update."""
    returns: Sequence[Tensor] | None = None

    def save(self, directory: Path) -> None:
        """Write the columns into a checkpoint."""
        columns = {
            "proximal": self.proximal,
            "advantages": self.advantages,
            "reference": self.reference,
            "values": self.values,
            "returns": self.returns,
        }
        save_file({name: torch.cat(list(c)) for name, c in columns.items() if c is not None}, directory / FIXED)


def load_fixed(directory: Path, rows: Sequence[Row]) -> FixedRows:
    """Read the columns for `rows` again. Raises `DataUnusable` when they belong to other rows."""
    flat = load_file(directory / FIXED)
    sizes = [row.trained for row in rows]
    if len(flat["proximal"]) != sum(sizes):
        raise DataUnusable("the checkpoint was made from other data")
    columns = {name: column.split(sizes) for name, column in flat.items()}
    return FixedRows(
        rows=rows,
        proximal=columns["proximal"],
        advantages=columns["advantages"],
        reference=columns.get("reference"),
        values=columns.get("values"),
        returns=columns.get("returns"),
    )
