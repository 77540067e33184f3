"""Which procedural tasks leave room to learn: `python -m tools.learning.sweep`, in the environment of `make tasks`.

Every task gets its warm-up, then its training questions are tried by sampling. A line for each appears in
docs/learning/sweep.jsonl when it was tried; with another warm-up a task is tried again. Held-out questions are not
touched.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tools.learning.worlds import PROCEDURAL

SWEEP = Path("docs", "learning", "sweep.jsonl")
WORK = Path(".cache", "sweep")
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
    demonstrations: int
    """Of the warm-up,"""
    steps: int
    """and its train steps."""


def read_tried(file: Path) -> list[Tried]:
    """Every task that was tried."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    return [msgspec.json.decode(line, type=Tried) for line in lines]


def try_task(name: str, work: Path) -> Tried:
    """Warm a policy up and let it try training questions."""
    # Torch takes seconds to import.
    from tools.learning.workshop import Workshop, kept_format  # noqa: PLC0415

    world = PROCEDURAL[name].world(0).computed_in(kept_format(work))
    workshop = Workshop(world, work / name)
    began = time.process_time()
    policy = workshop.first()
    warm = time.process_time()
    played = workshop.play(policy, world.training(QUESTIONS, 1) * TRIES, 1)
    rewards: defaultdict[str, set[float]] = defaultdict(set)
    for attempt in played:
        rewards[attempt.task.task_id].add(attempt.reward)
    calls = [call for attempt in played for call in attempt.calls]
    return Tried(
        task=name,
        questions=QUESTIONS,
        tries=TRIES,
        success=statistics.fmean(attempt.verdict.success for attempt in played),
        reward=statistics.fmean(attempt.reward for attempt in played),
        signal=statistics.fmean(len(apart) > 1 for apart in rewards.values()),
        prompt_tokens=statistics.fmean(len(call.prompt_token_ids) for call in calls),
        answer_tokens=statistics.fmean(len(call.output_token_ids) for call in calls),
        warm_up_s=round(warm - began, 1),
        play_s=round(time.process_time() - warm, 1),
        demonstrations=world.imitation.examples,
        steps=world.imitation.steps,
    )


def draw_sweep(file: Path) -> str:
    """What the tries showed, as Markdown; nothing where there were none."""
    tried = sorted(read_tried(file), key=lambda entry: -entry.success)
    if not tried:
        return ""
    heads = "task | demonstrations | steps | tokens of question | and answer | solved | reward | groups with signal"
    rows = [f"| {heads} |", "|---" * 8 + "|"]
    rows += [
        f"| {entry.task} | {entry.demonstrations} | {entry.steps} | {entry.prompt_tokens:.0f} |"
        f" {entry.answer_tokens:.1f} | {entry.success:.2f} | {entry.reward:.2f} | {entry.signal:.2f} |"
        for entry in tried
    ]
    tasks = {entry.task for entry in tried}
    head = f"""### Which tasks leave room to learn

Made by `python -m tools.learning.sweep`: after a short warm-up a procedural task is tried by sampling, {TRIES} times
at {QUESTIONS} training questions; {len(tasks)} of {len(PROCEDURAL)} were. Groups with signal are
questions whose tries got different rewards: others teach RLOO nothing."""
    return "\n".join([head, "", *rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Try every task that was not tried yet."""
    parser = argparse.ArgumentParser(prog="python -m tools.learning.sweep", description=__doc__)
    parser.add_argument("tasks", nargs="*", help="these alone")
    parser.add_argument("--work", type=Path, default=WORK, help="policies are kept here")
    options = parser.parse_args(argv)
    # Torch takes seconds to import.
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    known = {(entry.task, entry.demonstrations, entry.steps) for entry in read_tried(SWEEP)}
    for name in options.tasks or PROCEDURAL:
        warm_up = PROCEDURAL[name].imitation
        if (name, warm_up.examples, warm_up.steps) not in known:
            tried = try_task(name, options.work)
            with SWEEP.open("ab") as lines:
                lines.write(msgspec.json.encode(tried) + b"\n")
            sys.stderr.write(f"{tried}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
