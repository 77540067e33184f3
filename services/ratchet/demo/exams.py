"""Exams: how a policy does on held-out tickets, greedy and sampled side by side, kind by kind.

The gate's held-out command plays them and leaves one file per policy; the report and the live picture read it.
Greedy takes the most likely token everywhere (temperature 0): a policy that only became surer of what it did before
gains when sampled and gains nothing greedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ratchet.demo.intervals import Proportion
from ratchet.demo.world import MISJUDGED, Task, Verdict, kind_of
from ratchet.service.files import write_whole

SAMPLED, GREEDY = "sampled", "greedy"
TEMPERATURES = {SAMPLED: 1.0, GREEDY: 0.0}
"""By mode. Agents sample at temperature 1, because learning needs tries that differ."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One ticket played once in one mode."""

    task: str
    kind: str
    mode: str
    success: bool
    calls: int
    """Tool calls,"""
    valid_calls: int
    """and those of them that name a tool with its arguments."""


def answer_of(task: Task, mode: str, verdict: Verdict) -> Answer:
    """What is written down of a ticket that closed."""
    return Answer(
        task=task.task_id,
        kind=kind_of(task),
        mode=mode,
        success=verdict.success,
        calls=verdict.tool_calls,
        valid_calls=verdict.valid_tool_calls,
    )


@dataclass(frozen=True, slots=True)
class Exam:
    """All answers of one policy; every ticket is played once in each mode."""

    answers: Sequence[Answer]

    def success(self, mode: str, kinds: Collection[str] | None = None) -> Proportion | None:
        """Solved tickets of these kinds, of all when absent; None when there was none to solve."""
        chosen = [one.success for one in self.answers if one.mode == mode and (kinds is None or one.kind in kinds)]
        return Proportion(sum(chosen), len(chosen)) if chosen else None

    def misjudged(self, mode: str) -> Proportion | None:
        """Solved tickets of the kinds in which the clerk was wrong more often than right."""
        return self.success(mode, MISJUDGED)

    def valid_calls(self) -> Proportion | None:
        """Tool calls that were well formed; None when no tool was called."""
        calls = sum(one.calls for one in self.answers)
        return Proportion(sum(one.valid_calls for one in self.answers), calls) if calls else None

    @property
    def kinds(self) -> list[str]:
        """The kinds of tickets that came up, in the alphabet's order."""
        return sorted({one.kind for one in self.answers})


def write_exam(folder: Path, policy: str, answers: Iterable[Answer]) -> None:
    """Leave the answers of `policy` (`role@version`) where `read_exam` finds them: complete, or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(_path(folder, policy), msgspec.json.encode(list(answers)), durable=False)


def read_exam(folder: Path, policy: str) -> Exam | None:
    """The exam of `policy`; None when it has taken none."""
    try:
        return Exam(msgspec.json.decode(_path(folder, policy).read_bytes(), type=list[Answer]))
    except FileNotFoundError:
        return None


def read_exams(folder: Path, role: str, versions: Iterable[int]) -> Mapping[int, Exam]:
    """The exams of those versions of a role that took one."""
    found = {version: read_exam(folder, f"{role}@{version}") for version in versions}
    return {version: exam for version, exam in found.items() if exam is not None}


def _path(folder: Path, policy: str) -> Path:
    return folder / f"{policy}.json"
