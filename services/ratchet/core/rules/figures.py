"""The figures of a training: what each is and which values are good, as `figures.toml` says it, and their curves.

A test holds that each figure of every algorithm stands here, and nothing else. `bad_below` and `bad_above` mark a
value; where good or bad is a matter of how a curve runs, only the words say it.

The curves are what `metrics.jsonl` and the statuses of a job's attempts say. A line of the file, `{"step": 3, "epoch":
1, "seconds": 0.2, "loss": 0.7}`, is one train step. A line that cannot be read, such as one that a killed training did
not finish, is left out, and so is a figure that is no number.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ratchet.bus.message import JsonObject, decode

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


NO_FIGURES = frozenset({"step", "epoch"})
"""Members of a line that say where it stands."""
SECONDS = "seconds"
"""The figure of how long a train step took."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One train step: its number, and its figures by name, all of them finite."""

    number: int
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Point:
    """One figure at one train step."""

    step: int
    value: float


def train_steps(lines: bytes) -> Iterator[TrainStep]:
    """The train steps of a `metrics.jsonl`."""
    for line in lines.splitlines():
        try:
            members = decode(line, JsonObject)
        except (msgspec.DecodeError, RecursionError):
            continue
        step = _number(members.get("step"))
        if step is not None and step == int(step):
            yield TrainStep(int(step), finite(members))


def finite(members: Mapping[str, object]) -> dict[str, float]:
    """The figures among the members of a document."""
    numbers = {name: _number(value) for name, value in members.items() if name not in NO_FIGURES}
    return {name: value for name, value in numbers.items() if value is not None}


def joined(attempts: Iterable[Sequence[TrainStep]]) -> list[TrainStep]:
    """The train steps of a job. An attempt goes on from a checkpoint: what was measured beyond it was lost."""
    steps: list[TrainStep] = []
    for attempt in attempts:
        if attempt:
            first = attempt[0].number
            steps = [step for step in steps if step.number < first]
        steps += attempt
    return steps


def curves_of(steps: Iterable[TrainStep]) -> dict[str, list[Point]]:
    """The points of every figure, by its name."""
    curves: dict[str, list[Point]] = {}
    for step in steps:
        for name, value in step.figures.items():
            curves.setdefault(name, []).append(Point(step.number, value))
    return curves


def _number(value: object) -> float | None:
    """A finite number, None for anything else; JSON may hold whole numbers beyond every float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
