"""What a snapshot of long conversations takes, in files and in memory: `python -m tests.bench.bench_snapshot --help`.

Every trajectory is one growing conversation: each call adds as many tokens that it reads as tokens that it answers
with, all drawn at random, which is the worst case for compression. Writing and reading run in processes of their own,
whose peak memory is taken as a whole, with Python, torch and all imports. `--old` also writes and reads the form of
version 0.1, in which every call has its whole prompt.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.turn import Turn
from ratchet.core.datasets.domain.rows import Scored, SnapshotRow, row_of
from ratchet.core.datasets.domain.sequences import unpacked
from ratchet.core.datasets.parquet import RowWriter
from ratchet.core.datasets.selector import TURNS_AT_A_TIME
from tests.support.training import trajectory, turn

VOCABULARY = 150_000


def logged(number: int, calls: int, tokens: int) -> TrajectoryRow:
    """The row of a trajectory of some calls, each with so many new tokens."""
    draw = random.Random(number)
    turns: list[Turn] = []
    known: list[int] = []
    for index in range(calls):
        answer = tokens // 2
        prompt = known + [draw.randrange(VOCABULARY) for _ in range(tokens - answer)]
        output = [draw.randrange(VOCABULARY) for _ in range(answer)]
        logprobs = [-draw.expovariate(2.0) for _ in output]
        parent = turns[-1] if turns else None
        facts = {"output_token_ids": output, "behavior_logprobs": logprobs}
        turns.append(turn(f"t{number}", index, parent=parent, full_prompt=prompt, prefix=known, **facts))
        known = prompt + output
    scored = Scored(task_key=f"k{number // 4}", reward=draw.random(), raw_reward=0.5, baseline=0.5)
    made = row_of(trajectory(f"t{number}", turns=turns), turns, scored, needs_calls=True)
    assert isinstance(made, SnapshotRow)
    assert isinstance(made.row, TrajectoryRow)
    return made.row


def write(
    file: Path, trajectories: int, calls: int, tokens: int, form: Callable[[TrajectoryRow], TrajectoryRow]
) -> None:
    """A snapshot, in the chunks in which the coordinator exports it."""
    writer = RowWriter(file, TrajectoryRow)
    chunk = max(1, TURNS_AT_A_TIME // calls)
    for start in range(0, trajectories, chunk):
        writer.add([form(logged(number, calls, tokens)) for number in range(start, min(start + chunk, trajectories))])
    writer.close()


def read(file: Path) -> int:
    """What a policy-gradient job makes of the snapshot before it touches a model; returns the trained tokens."""
    from ratchet.trainer_worker.training.child_run import read_examples  # noqa: PLC0415 - torch, only where it is read
    from ratchet.trainer_worker.training.learner.rows import policy_data  # noqa: PLC0415

    data = policy_data(read_examples(file, "rloo"), None, mirrored=False, vocabulary=VOCABULARY)
    return sum(row.trained for row in data.rows)


def measured(arguments: list[str]) -> dict[str, float]:
    """One part in a process of its own: seconds and peak memory."""
    command = [sys.executable, "-m", "tests.bench.bench_snapshot", *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def rounds(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, float, float, float, float]]:
    """(form, bytes of the file, seconds of reading, memory of writing, memory of reading) of each form."""
    size = [str(number) for number in (options.trajectories, options.calls, options.tokens)]
    for form in ["compact", "complete"] if options.old else ["compact"]:
        file = folder / f"{form}.parquet"
        written = measured(["--write", str(file), "--form", form, *size])
        reading = measured(["--read", str(file), *size])
        yield form, file.stat().st_size, reading["seconds"], written["peak"], reading["peak"]


def main() -> None:
    options = parsed()
    started = time.monotonic()
    if options.write or options.read:
        if options.write:
            form = unpacked if options.form == "complete" else lambda row: row
            write(Path(options.write), options.trajectories, options.calls, options.tokens, form)
        else:
            read(Path(options.read))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        sys.stdout.write(json.dumps({"seconds": time.monotonic() - started, "peak": peak}))
        return
    distinct = options.trajectories * options.calls * options.tokens
    sys.stdout.write(
        f"{options.trajectories} trajectories of {options.calls} calls, {options.tokens} new tokens each:\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for form, size, seconds, writing, reading in rounds(options, Path(folder)):
            sys.stdout.write(
                f"{form:9} {size / 1e6:9.1f} MB, {size / distinct:6.2f} bytes a distinct token;"
                f" written within {writing / 1e9:.2f} GB, read within {reading / 1e9:.2f} GB in {seconds:.0f} s\n"
            )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trajectories", type=int, nargs="?", default=100)
    parser.add_argument("calls", type=int, nargs="?", default=30)
    parser.add_argument("tokens", type=int, nargs="?", default=1000)
    parser.add_argument("--old", action="store_true", help="the form of version 0.1 too")
    for hidden in ("--write", "--read", "--form"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
