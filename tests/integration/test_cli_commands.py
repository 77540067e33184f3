"""Commands on a running stack: what people and programs get to read, and no traceback for anything that is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_lines import COMMANDS, ODD, lines

SERVICES = "trajectory_collector,rl_coordinator,canary_deployer"
ENDING = {("up",), ("down",)}
"""Commands that would begin or end the stack."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stack without torch."""
    path = tmp_path_factory.mktemp("cli") / "a state"
    up = ratchet("up", "--dir", str(path), "--free-ports", "--only", SERVICES, "--detach")
    assert up.returncode == 0, up.stderr
    try:
        yield path
    finally:
        assert ratchet("down", "--dir", str(path)).returncode == 0


def ratchet(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
    return subprocess.run(
        [sys.executable, "-m", "ratchet.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**plain, **env},
    )


def record(task: int) -> dict[str, Any]:
    chat = [{"role": "user", "content": f"task {task}"}, {"role": "assistant", "content": "done"}]
    return {"task_id": task, "trial": 0, "reward": 1.0, "traj": chat}


def in_one_process(tmp_path: Path, commands: list[list[str]]) -> list[tuple[int, str]]:
    """Exit code and standard error of each; one interpreter, for starting one takes longer than most commands."""
    program = tmp_path / "commands.py"
    program.write_text(
        "import contextlib, io, json, sys\n"
        "from ratchet.cli.__main__ import main\n"
        "for line in json.load(sys.stdin):\n"
        "    said = io.StringIO()\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):\n"
        "        code = main(line)\n"
        "    print(json.dumps([int(code), said.getvalue()]))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        check=False,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_odd_values_get_one_line_from_a_running_stack(directory: Path, tmp_path: Path) -> None:
    typed: list[list[str]] = []
    for words, command in COMMANDS:
        where = [f"--dir={directory}"] if any("--dir" in one.opts for one in command.params) else []
        tried = [] if words in ENDING else lines(words, command, ODD[0])
        typed += [[*words, *where, *line[len(words) :]] for line in tried]
    for line, (code, said) in zip(typed, in_one_process(tmp_path, typed), strict=True):
        assert code in (0, 1, 2, 3, 4), line
        assert code in (0, 3) or said.startswith("ratchet: "), (line, said)


def test_an_import_is_counted_once_and_keeps_its_role(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    path.write_text(json.dumps([record(task) for task in range(3)]))

    def imported(role: str, *more: str) -> dict[str, Any]:
        done = ratchet("import", "tau-bench", str(path), "--role", role, "--json", *more, "--dir", str(directory))
        return {**json.loads(done.stdout), "code": done.returncode}

    assert imported("airline", "--dry-run")["published"] == 3
    assert imported("airline")["published"] == 3
    stored = [0]
    while stored[-1] < 3:  # each look takes a while by itself
        assert len(stored) < 50
        stored.append(json.loads(ratchet("status", "--json", "--dir", str(directory)).stdout)["rows"]["trajectories"])
    again = imported("airline")
    assert (again["published"], again["present"], again["code"]) == (0, 3, 0)
    other = imported("hotel")
    assert (other["published"], other["elsewhere"], other["code"]) == (0, {"airline": 3}, 3)


def test_a_role_that_nothing_knows_is_the_same_line_everywhere(directory: Path) -> None:
    for line in ("jobs --role nobody", "policies list nobody", "policies show nobody", "rollout status nobody"):
        done = ratchet(*line.split(), "--dir", str(directory))
        assert (done.returncode, done.stderr) == (1, "ratchet: no such role: nobody\n"), line


def test_a_printed_follow_up_can_be_pasted(directory: Path) -> None:
    asked = ratchet("train", "clerk", "--algorithm", "sft", "--base-model", "none", "--dir", str(directory), "--json")
    listed = ratchet("jobs", "--dir", str(directory), NO_COLOR="1", COLUMNS="40")
    assert listed.returncode == 0
    assert "\x1b" not in listed.stdout
    if asked.returncode == 0:
        job = json.loads(asked.stdout)["training_job_id"]
        assert job in listed.stdout
        shown = ratchet("jobs", job, "--dir", str(directory))
        assert shown.returncode == 0, shown.stderr
        assert "base model" in shown.stdout
    missing = ratchet("jobs", "--dir", str(directory.parent / "not here"))
    words = missing.stderr.split("`")[1]
    assert words == f"ratchet up --dir '{directory.parent / 'not here'}'"
