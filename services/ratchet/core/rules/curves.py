"""The curves of a training: what each train step measured, as `metrics.jsonl` and the statuses of its attempts say.

A line of the file, `{"step": 3, "epoch": 1, "seconds": 0.2, "loss": 0.7}`, is one train step. A line that cannot be
read, such as one that a killed training did not finish, is left out, and so is a figure that is no number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.bus.message import JsonObject, decode

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
