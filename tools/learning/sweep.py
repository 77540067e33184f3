"""Which procedural tasks leave reinforcement room: `python -m tools.learning.sweep`, in the environment of `make tasks`.

Every task gets a short warm-up, then its training questions are tried by sampling. A line for each appears in
docs/learning/sweep.jsonl when it was tried; to try it again, delete the line. The held-out questions are not touched.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import msgspec

QUESTIONS, TRIES = 32, 8


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What the tries of a task showed."""

    task: str
    questions: int
    tries: int
    success: float
    """Share of the tries that were right."""
    reward: float
    signal: float
    """Share of the questions whose tries got different rewards."""
    prompt_tokens: float
    answer_tokens: float
    warm_up_s: float
    play_s: float
    """Processor time."""
    steps: int
    """Of the warm-up."""


def read_tried(file: Path) -> list[Tried]:
    """Every task that was tried."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    return [msgspec.json.decode(line, type=Tried) for line in lines]


def try_task(name: str, work: Path) -> Tried:
    """Warm a policy up and let it try training questions."""
    # Torch takes seconds to import.
    from tools.learning.workshop import Workshop  # noqa: PLC0415
    from tools.learning.worlds import PROCEDURAL  # noqa: PLC0415

    world = PROCEDURAL[name].world(0)
    workshop = Workshop(world, work / name)
    began = time.process_time()
    policy = workshop.first()
    warm = time.process_time()
    played = workshop.play(policy, world.training(QUESTIONS, 1) * TRIES, 1)
    rewards: defaultdict[str, set[float]] = defaultdict(set)
    for one in played:
        rewards[one.task.task_id].add(one.reward)
    calls = [call for one in played for call in one.calls]
    return Tried(
        task=name,
        questions=QUESTIONS,
        tries=TRIES,
        success=statistics.fmean(one.verdict.success for one in played),
        reward=statistics.fmean(one.reward for one in played),
        signal=statistics.fmean(len(apart) > 1 for apart in rewards.values()),
        prompt_tokens=statistics.fmean(len(call.prompt_token_ids) for call in calls),
        answer_tokens=statistics.fmean(len(call.output_token_ids) for call in calls),
        warm_up_s=round(warm - began, 1),
        play_s=round(time.process_time() - warm, 1),
        steps=world.imitation.steps,
    )
