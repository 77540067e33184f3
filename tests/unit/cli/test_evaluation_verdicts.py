"""`ratchet eval`: what the answers of two models say, and the exit code of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratchet.cli.eval import exit_code, report_of
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.evaluation.playing import Try
from ratchet.core.evaluation.task_files import TaskFile
from tests.support.command_lines import ratchet

TASKS = 50
FILE = TaskFile(name="tasks.jsonl", digest="0" * 64, tasks=())


def tries(score: float = 0.0, *, refused: bool = False) -> list[Try]:
    return [Try(task=f"t{n}", mode="greedy", number=0, score=score, refused=refused) for n in range(TASKS)]


@pytest.mark.parametrize(
    ("one", "other", "verdict", "code"),
    [
        (tries(1), tries(1), "no worse", ExitCode.DONE),
        (tries(refused=True), tries(refused=True), "no verdict", ExitCode.PARTLY),
        (tries(refused=True), tries(1), "not shown", ExitCode.FAILED),
        (tries(1), tries(refused=True), "no worse", ExitCode.DONE),
    ],
    ids=["equal", "both refuse", "the first one refuses", "the other one refuses"],
)
def test_no_worse_is_a_verdict_on_answers(
    one: list[Try], other: list[Try], verdict: str, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(FILE, {"new": one, "old": other}, 0.1)
    assert (report.verdict, exit_code(report, 0.1)) == (verdict, code)
    assert capsys.readouterr().err.count("\n") == int(code != ExitCode.DONE)


def test_a_policy_whose_every_request_is_refused_was_not_evaluated() -> None:
    assert exit_code(report_of(FILE, {"new": tries(refused=True)}, None), None) == ExitCode.PARTLY
    assert exit_code(report_of(FILE, {"new": tries()}, None), None) == ExitCode.DONE


def test_the_policy_that_got_no_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    failed = [Try(task="t0", mode="greedy", number=0, fault="the engine is away"), *tries(1)[1:]]
    assert exit_code(report_of(FILE, {"new": failed, "old": tries(1)}, None), None) == ExitCode.PARTLY
    assert capsys.readouterr().err == (
        "1 tries of new got no answer from the engine, and count nowhere: the engine is away\n"
    )


def test_the_reason_of_a_refusal_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    refused = [Try(task="t0", mode="greedy", number=0, refused=True, why="refused: maximum context length is 512")]
    assert exit_code(report_of(FILE, {"new": refused}, None), None) == ExitCode.PARTLY
    assert "nothing was evaluated: refused: maximum context length is 512" in capsys.readouterr().err


def test_the_answers_do_not_overwrite_the_tasks(tmp_path: Path) -> None:
    tasks, link = tmp_path / "tasks.jsonl", tmp_path / "link.jsonl"
    tasks.write_text(
        '{"id": "t", "messages": [{"role": "user", "content": "?"}], "expect": {"text": {"any_of": ["x"]}}}'
    )
    before = tasks.read_bytes()
    os.link(tasks, link)
    done = ratchet("eval", "any", "--tasks", str(tasks), "-o", str(link), "--dry-run")
    assert (done.returncode, tasks.read_bytes()) == (2, before)
    assert "--output would overwrite the tasks" in done.stderr
