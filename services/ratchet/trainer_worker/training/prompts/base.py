"""What an algorithm that writes bundles is, and what it gets from the process that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Hyperparameters
from ratchet.core.evaluation.task_files import GradedTask


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a candidate played it, greedily."""

    score: float
    why: str
    """The grader's words."""
    messages: list[JsonObject] = []
    """The conversation, the candidate's answers included; as the agent would have sent it, without the bundle."""


@dataclass(frozen=True, slots=True)
class SearchJob:
    """What a search begins with."""

    start: Bundle
    """What serves the role."""
    train: Sequence[GradedTask]
    """To learn from: their words may be shown to the reflector."""
    validation: Sequence[GradedTask]
    """To choose by: only their scores are used."""
    recorded: Sequence[TrajectoryRow]
    """What agents of the role did, with rewards and words."""
    hyperparameters: Hyperparameters
    batch_size: int
    """Train tasks that one reflection reads."""


class SearchRun(Protocol):
    """The running search as an algorithm sees it. A task that a candidate has played, and a reflection that was made,
    also in an earlier attempt, costs nothing again: a search that goes on begins anew and comes to the same place.

    Its methods raise `BudgetSpent` where the budget has no room for the next call and `StopRequested`: the algorithm
    lets both pass. The run keeps the best candidate that was `scored`.
    """

    def play(self, bundle: Bundle, tasks: Sequence[GradedTask]) -> list[Played]:
        """Each task played with a candidate. A bundle that could answer no call scores 0, and says why."""
        ...

    def reflect(self, prompt: str) -> str:
        """What the reflector answers."""
        ...

    def scored(self, bundle: Bundle, parents: Sequence[Bundle], scores: Mapping[str, float]) -> None:
        """A candidate, and its score by validation task: all of them. The first one is the start."""
        ...

    def calls(self) -> int:
        """Calls that were charged so far: unchanged by what costs nothing."""
        ...


class Search(Protocol):
    """The code of an algorithm: looks for a better bundle until nothing better is to be found."""

    def __call__(self, job: SearchJob, run: SearchRun, /) -> None: ...
