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


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row: of one algorithm."""

    learning_rate: LearningRates
    batch_size: int
    epochs: int
    evidence: str
    source: str
    """Where the evidence stands."""
    least: dict[str, float] = {}
    """Of what data, by name; empty: it is never proposed."""


DEFAULTS: Mapping[str, Defaults] = msgspec.toml.decode(
    Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, Defaults]
)
"""By algorithm, in the order in which they are proposed."""
