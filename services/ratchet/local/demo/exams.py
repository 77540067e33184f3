"""Exams: how a policy does on held-out tickets, greedy and sampled side by side, kind by kind.

The gate's held-out command (`ratchet_helpdesk.heldout`) leaves one file of answers per policy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ratchet_helpdesk.heldout import Answer, exam_path

Z_95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """`successes` out of `trials` (at least one)."""

    successes: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.trials or self.trials == 0:
            raise ValueError(f"{self.successes} of {self.trials} is no proportion")

    @property
    def rate(self) -> float:
        """The share of successes."""
        return self.successes / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval: unlike rate ± 2 errors it stays in [0, 1] and holds for rates near its ends."""
        n, p, z = self.trials, self.rate, Z_95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def is_above(self, other: Proportion) -> bool:
        """Whether this interval lies wholly above the other's."""
        return self.interval[0] > other.interval[1]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.2f} [{low:.2f}, {high:.2f}]"


@dataclass(frozen=True, slots=True)
class Exam:
    """All answers of one policy; every ticket is played once in each mode."""

    answers: Sequence[Answer]

    def success(self, mode: str, kinds: Collection[str] | None = None) -> Proportion | None:
        """Solved tickets of these kinds, of all when absent; None when there was none to solve."""
        chosen = [one.success for one in self.answers if one.mode == mode and (kinds is None or one.kind in kinds)]
        return Proportion(sum(chosen), len(chosen)) if chosen else None

    def valid_calls(self) -> Proportion | None:
        """Tool calls that were well formed; None when no tool was called."""
        calls = sum(one.calls for one in self.answers)
        return Proportion(sum(one.valid_calls for one in self.answers), calls) if calls else None

    @property
    def kinds(self) -> list[str]:
        """The kinds of tickets that came up, in the alphabet's order."""
        return sorted({one.kind for one in self.answers})


def read_exam(folder: Path, policy: str) -> Exam | None:
    """The exam of `policy` (`role@version`); None when it has taken none."""
    try:
        return Exam(msgspec.json.decode(exam_path(folder, policy).read_bytes(), type=list[Answer]))
    except FileNotFoundError:
        return None


def read_exams(folder: Path, role: str, versions: Iterable[int]) -> Mapping[int, Exam]:
    """The exams of those versions of a role that took one."""
    exams = {version: read_exam(folder, f"{role}@{version}") for version in versions}
    return {version: exam for version, exam in exams.items() if exam is not None}
