"""Every figure that a training prints: what it is, and which values are good and bad, as `figures.toml` says it.

A test holds that each figure of every algorithm stands here, and nothing else. `bad_below` and `bad_above` mark a
value; where good or bad is a matter of how a curve runs, only the words say it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONVERSATIONS_WITHOUT_TOOLS = "conversations_without_tools"
"""The deployer reads it too: a role with such conversations has agents that call tools."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure."""

    meaning: str
    """What it is; the sentence goes on with what is good and bad."""
    good: str
    bad: str
    unit: str = ""
    bad_below: float | None = None
    bad_above: float | None = None

    @property
    def sentence(self) -> str:
        """Everything, for a person."""
        return f"{self.meaning}; good: {self.good}; bad: {self.bad}."

    def is_bad(self, value: float) -> bool:
        """Whether a value is known to be bad."""
        return (self.bad_below is not None and value < self.bad_below) or (
            self.bad_above is not None and value > self.bad_above
        )


FIGURES: Mapping[str, Figure] = {
    name: Figure(**members)
    for name, members in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
"""By the name that it has in statuses, `metrics.jsonl`, manifests and cards."""
