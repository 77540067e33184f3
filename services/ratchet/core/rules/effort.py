"""What a trajectory took: how often the model was asked, and how much it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ratchet.core.contract.reward import Effort
from ratchet.core.contract.trajectory import Trajectory, TrajectoryTurn


def model_calls(trajectory: Trajectory) -> int:
    """How often the model was asked: parallel tool calls come from one answer."""
    return sum(1 for _ in _answers(trajectory))


def effort_of(trajectory: Trajectory) -> Effort:
    """What it took."""
    answers = list(_answers(trajectory))
    texts = [text for turn in answers for text in (turn.action.raw_response or "", *(turn.thought_process or ()))]
    return Effort(model_calls=len(answers), characters=sum(map(len, texts)))


def _answers(trajectory: Trajectory) -> Iterator[TrajectoryTurn]:
    """The first turn of each answer of the model."""
    for _, turns in groupby(trajectory.turns, key=lambda turn: turn.turn_ref or f"turn {turn.turn_id}"):
        yield next(turns)
