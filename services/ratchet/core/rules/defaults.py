"""What jobs train with where they name nothing, and what their data must be to be proposed: `defaults.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ratchet.core.contract.training import Hyperparameters


class LearningRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The learning rates of jobs that name none."""

    adapter: float
    full: float
    """Of a full fine-tune."""

    def rate_of(self, hyperparameters: Hyperparameters) -> float:
        """The learning rate that a job trains with."""
        plain = self.full if hyperparameters.full_finetune else self.adapter
        return hyperparameters.learning_rate or plain


def in_words(epochs: int, batch_size: int, learning_rate: float) -> str:
    """A recipe, within a sentence: `3 passes in batches of 16 at 0.0002`."""
    passes = "1 pass" if epochs == 1 else f"{epochs} passes"
    return f"{passes} in batches of {batch_size} at {learning_rate:g}"


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What trainings had that were measured."""

    learning_rate: float
    batch_size: int
    epochs: int
    rank: int
    """Of the adapter."""

    def __str__(self) -> str:
        return f"{in_words(self.epochs, self.batch_size, self.learning_rate)}, rank {self.rank}"


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an algorithm came to on a model of one size."""

    parameters: float
    """Of the model."""
    recipe: Recipe
    figures: str
    source: str
    """Where the figures stand."""

    @property
    def size(self) -> str:
        """Of the model, in words."""
        return f"{self.parameters / 1e6:g} million parameters"

    def __str__(self) -> str:
        return f"{self.size}, {self.recipe}: {self.figures} ({self.source})"


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row: of one algorithm."""

    learning_rate: LearningRates
    batch_size: int
    epochs: int
    least: dict[str, float] = {}
    """Of what data, by name; empty: it is never proposed."""
    measured: list[Measured] = []
    """What its place and its figures rest on, the smallest model first."""

    @property
    def evidence(self) -> str:
        """What was measured, in words; `judgement` where nothing was."""
        return "; ".join(map(str, self.measured)) or "judgement"


DEFAULTS: Mapping[str, Defaults] = msgspec.toml.decode(
    Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, Defaults]
)
"""By algorithm, in the order in which they are proposed."""
