"""Measures one cell of the learning report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ratchet.bus.message import JsonObject
from ratchet.contract.snapshot import LABELS, PAIRS, LabelRow, PairRow
from ratchet.datasets.domain.baselines import baselines
from ratchet.datasets.domain.labels import THUMBS
from ratchet.demo.plan import Plan
from ratchet.preferences.derivation import derive_pairs
from ratchet.preferences.rules.base import Try
from ratchet.preferences.rules.reward_margin import RewardMargin
from ratchet.rules.algorithms import ALGORITHMS
from ratchet.trainer_worker.errors import TrainingFailed
from ratchet_helpdesk import ROLE
from ratchet_helpdesk.world import TRAIN, draw_tasks, tool_definitions
from tools.learning.cells import (
    EXPERIMENTS,
    RLOO,
    Cell,
    Experiment,
    Measured,
    Result,
    Variant,
    learner_digest,
    recipe_of,
)
from tools.learning.offline import PlayedByPolicy
from tools.learning.workshop import Lesson, Policy, Workshop

PACKAGES = ("torch", "transformers", "peft", "trl")
"""Whose versions belong to the figures."""
HISTORY_TRIES, HISTORY_TICKETS = 4, 40
"""Of each version that an experiment makes before its first cycle."""

Played = tuple[str, str, float]
"""(id, ticket, reward)."""


def measure(cell: Cell, plan: Plan, work: Path) -> Result:
    """Measure a cell; its policies and exams stay in `work`, and what is there is not made again."""
    torch.set_num_threads(1)
    began = time.monotonic()
    own = replace(plan, seed=cell.seed)
    lesson = Lessons(own, EXPERIMENTS[cell.experiment], cell.variant, Workshop(own, work / f"seed-{cell.seed}"))
    measured, refused = lesson.measured()
    return Result(
        experiment=cell.experiment,
        variant=cell.variant,
        seed=cell.seed,
        recipe=recipe_of(plan),
        versions={name: version(name) for name in PACKAGES},
        learner=learner_digest(),
        machine=f"{os.cpu_count()} cores ({platform.machine()}), one torch thread a cell",
        seconds=round(time.monotonic() - began, 1),
        measured=measured,
        refused=refused,
    )


@dataclass(slots=True)
class Lessons:
    """The cycles of one cell."""

    plan: Plan
    experiment: Experiment
    name: str
    workshop: Workshop
    history: list[Played] = field(default_factory=list[Played])
    """Of all that was played, oldest first."""

    def measured(self) -> tuple[list[Measured], str | None]:
        """The exam of every policy, and why a training was refused."""
        versions = self._versions()
        measured = [Measured.of(0, self.workshop.exam(versions[-1]), {})]
        for cycle in range(1, self.experiment.cycles + 1):
            player = versions[-1 - self._variant.behind]
            try:
                learnt = self._cycle(versions[-1], player, cycle)
            except TrainingFailed as error:
                return measured, f"cycle {cycle}: {error}"
            versions.append(learnt)
            measured.append(Measured.of(cycle, self.workshop.exam(learnt), learnt.figures()))
        return measured, None

    @property
    def _variant(self) -> Variant:
        return self.experiment.variant(self.name)

    def _versions(self) -> list[Policy]:
        """The policies that there are before the first cycle, oldest first."""
        versions = [self.workshop.first()]
        with self.workshop.alone():
            for number in range(1, self.experiment.history + 1):
                play = partial(self._play, versions[-1], HISTORY_TICKETS, HISTORY_TRIES, 50 + number)
                lesson = Lesson(RLOO, {}, number, lambda play=play: [one.logged() for one in play()])
                versions.append(self.workshop.learn(versions[-1], lesson, f"history-{number}"))
        return versions

    def _cycle(self, start: Policy, player: Policy, cycle: int) -> Policy:
        variant, experiment = self._variant, self.experiment
        played = self._play(player, experiment.trajectories // variant.tries, variant.tries, cycle)
        self.history += [(name_in(cycle, one), one.task.task_id, one.reward) for one in played]
        rows = partial(rows_of, variant, played, self.history, cycle)
        lesson = Lesson(variant.algorithm, variant.options, cycle, rows)
        return self.workshop.learn(start, lesson, f"{experiment.name} {variant.name} {cycle}")

    def _play(self, player: Policy, tickets: int, tries: int, number: int) -> list[PlayedByPolicy]:
        """Training tickets, each several times."""
        own = 100 * (self.plan.seed + 1)
        tasks = draw_tasks(TRAIN, tickets, own + (1 if self.experiment.again else number))
        return self.workshop.play(player, tasks * tries, own + number)


def rows_of(variant: Variant, played: Sequence[PlayedByPolicy], history: Sequence[Played], cycle: int) -> Sequence[Any]:
    """What the variant's algorithm learns from; `history` ends with `played`. `Any`: every format has its own type."""
    learns_from = ALGORITHMS[variant.algorithm].learns_from
    if learns_from == PAIRS:
        return pair_rows(played)
    if learns_from == LABELS:
        return [label_row(one) for one in played]
    known = baselines(history) if variant.remembers else {}
    kept = [one for one in played if one.verdict.success or not variant.solved_only]
    return [one.logged(known.get(name_in(cycle, one))) for one in kept]


def name_in(cycle: int, one: PlayedByPolicy) -> str:
    """Of a trajectory in the history: the tickets of two cycles may be the same."""
    return f"{cycle} {one.trajectory_id}"


def pair_rows(played: Sequence[PlayedByPolicy]) -> list[PairRow]:
    """The pairs that `ratchet preferences derive` makes of tries of the same ticket."""
    tries = [
        Try(
            one.trajectory_id,
            ROLE,
            one.task.task_id,
            list(one.messages),
            tool_definitions(),
            success=one.verdict.success,
        )
        for one in played
    ]
    derived = [pair.preference() for pair in derive_pairs(tries, RewardMargin()).pairs]
    return [
        PairRow(
            preference_id=one.preference_id,
            prompt=_messages(one.prompt),
            chosen=_messages(one.chosen),
            rejected=_messages(one.rejected),
            tools=one.tools or [],
            source=one.source,
            rater=one.rater,
            chosen_trajectory_id=one.chosen_trajectory_id,
            rejected_trajectory_id=one.rejected_trajectory_id,
            group_key=one.group_key,
        )
        for one in derived
    ]


def label_row(played: PlayedByPolicy) -> LabelRow:
    """A thumb for the whole answer to the opening: up for a solved ticket."""
    messages: list[JsonObject] = list(played.messages)
    start = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    return LabelRow(
        trajectory_id=played.trajectory_id,
        prompt=messages[:start],
        completion=messages[start:],
        label=played.verdict.success,
        tools=tool_definitions(),
        source=THUMBS,
    )


def _messages(value: str | list[JsonObject]) -> list[JsonObject]:
    """Pairs of tries are messages."""
    if isinstance(value, str):
        raise TypeError("a derived pair holds messages")
    return value
