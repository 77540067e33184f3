"""The GPU report: what runs, what cannot and why, and what a machine without a GPU gets."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from tests.bench.gpu_report import NO_GPU, NOT_RUN, PARTS, Machine, Part, report

ONE_GPU = Machine(["a GPU"], vllm=None)


def part(code: str, limit_s: int = 60, *, gpus: int = 1, vllm: bool = False) -> Part:
    return Part("a part", (sys.executable, "-c", code), limit_s, gpus, vllm)


def outcome(one: Part, machine: Machine, out: Path) -> tuple[int, str]:
    """The exit code, and the report."""
    return report(machine, [one], out), out.read_text()


def test_a_machine_without_gpu_reports_that_nothing_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "docs" / "gpu-report.md"
    assert outcome(part("raise SystemExit(1)"), Machine([], vllm=None), out)[0] == 0
    assert NOT_RUN in out.read_text()
    assert capsys.readouterr().out == f"{NO_GPU}\n"


def test_a_machine_without_gpu_keeps_what_another_measured(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    out.write_text("measured")
    assert outcome(part(""), Machine([], vllm=None), out) == (0, "measured")


@pytest.mark.parametrize(
    ("one", "code", "verdict"),
    [
        (part("print('12 tokens/s')"), 0, "| a part | passed, "),
        (part("print('2 passed, 1 skipped in 1 s')"), 0, "| a part | not run: 1 skipped, "),
        (part("raise SystemExit(3)"), 1, "| a part | failed: exit code 3, "),
        (part("", gpus=2), 0, "| a part | not run: it needs 2 GPUs, and this machine has 1 |"),
        (part("", vllm=True), 0, "| a part | not run: no vLLM for CUDA is here"),
        (Part("a part", ("/no/python",), limit_s=1), 0, "| a part | not run: /no/python is missing"),
    ],
)
def test_every_outcome_of_a_part_is_in_the_report(one: Part, code: int, verdict: str, tmp_path: Path) -> None:
    ended, text = outcome(one, ONE_GPU, tmp_path / "report.md")
    assert ended == code
    assert verdict in text
    if "print" in one.command[-1]:
        assert "```" in text


@pytest.mark.slow
def test_a_part_at_its_limit_fails_and_leaves_no_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    code = f"""
import subprocess
with open({str(tmp_path / "alive")!r}, "wb", 0) as alive:
    child = subprocess.Popen(["tail", "-f", "/dev/null"], pass_fds=[alive.fileno()])
    alive.write(b"begun")
    child.wait()
"""
    ended, text = outcome(part(code, 30), ONE_GPU, tmp_path / "report.md")
    assert ended == 1
    assert "failed: not at its end after 30 s" in text
    assert os.read(reader, 5) == b"begun"
    assert select.select([reader], [], [], 60)[0]
    assert os.read(reader, 1) == b""  # who held its other end has ended
    os.close(reader)


def test_the_parts_name_what_exists_and_take_25_minutes_at_most() -> None:
    assert sum(part.limit_s for part in PARTS) <= 25 * 60
    named = [word.split("::") for part in PARTS for word in part.command if word.startswith("tests/")]
    for file, *test in named:
        assert all(f"def {name}(" in Path(file).read_text() for name in test)
