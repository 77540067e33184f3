"""What a machine with a GPU shows, in one report, unattended and within 25 minutes: `make gpu-report`.

It composes what is there: `tests/gpu`, `tests/vllm` on a vLLM for CUDA (`RATCHET_VLLM` is the path of its command, or
`vllm` is on the path), the wait for the first train step, and a cell of `make bench-learning`. A part that cannot run
says why. Without a GPU nothing runs, the report says so, and the exit code is 0; it is 1 when a part failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

REPOSITORY = Path(__file__).parents[2]
NO_GPU = "This machine has no GPU that torch can use: nothing was run."
NOT_RUN = "No machine with a GPU has run it yet."
LINES = 20
"""Of a part's output, the last ones."""


@dataclass(frozen=True, slots=True)
class Part:
    """One command, and what it needs."""

    title: str
    command: Sequence[str]
    limit_s: int
    gpus: int = 1
    vllm: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """What the parts may need."""

    gpus: Sequence[str]
    vllm: str | None
    """The command of one for CUDA."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a part ended."""

    title: str
    verdict: str
    failed: bool = False
    output: Sequence[str] = ()


def _pytest(title: str, limit_s: int, *tests: str, gpus: int = 1, vllm: bool = False) -> Part:
    return Part(
        title, (sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", *tests), limit_s, gpus, vllm
    )


TEN = "tests/vllm/test_policies.py::test_ten_roles_on_one_base_answer_though_vllm_holds_two_policies"
CELL = """
import pathlib, tempfile, tools.learning.measure as learning
with tempfile.TemporaryDirectory() as work:
    result = learning.measure(learning.Cell("games", "rloo", 0), pathlib.Path(work), 4)
for exam in result.measured:
    print(f"cycle {exam.cycle}:", *(f"{mode} {exam.success(mode)}" for mode in exam.counts))
"""
PARTS = (
    _pytest("Tokens/s, MFU and memory: two cycles of every algorithm", 420, "tests/gpu/test_two_cycles_on_a_gpu.py"),
    _pytest("Trained, served by vLLM, trained on its answers", 300, "tests/gpu/test_vllm_on_a_gpu.py", vllm=True),
    _pytest("A canary on vLLM; ten adapters on one base", 300, "tests/vllm/test_canary.py", TEN, vllm=True),
    _pytest("Two ranks", 120, "tests/gpu/test_two_ranks_on_two_gpus.py", gpus=2),
    Part("The first train step", (sys.executable, "-m", "tests.bench.bench_trainer_start", "--dispatched-only"), 90),
    Part(
        "A cell of `make bench-learning`: games/rloo/0, played by `engine_local` on the processor",
        (str(REPOSITORY / ".tasks" / "bin" / "python"), "-c", CELL),
        270,
    ),
)
"""What matters most comes first; the limits together are 25 minutes."""


def lacks(part: Part, machine: Machine) -> str | None:
    """Why a part cannot run here."""
    if len(machine.gpus) < part.gpus:
        return f"it needs {part.gpus} GPUs, and this machine has {len(machine.gpus)}"
    if part.vllm and machine.vllm is None:
        return "no vLLM for CUDA is here: RATCHET_VLLM names its command"
    if not Path(part.command[0]).exists():
        return f"{part.command[0]} is missing: make tasks"
    return None


def show(part: Part, environment: Mapping[str, str]) -> Shown:
    """Run a part to its end or to its limit. A part whose tests were skipped has not passed."""
    began = time.monotonic()
    code, output = _run(part, environment)
    lines = output.decode(errors="replace").splitlines()[-LINES:]
    took = f"{time.monotonic() - began:.0f} s"
    if code is None:
        return Shown(part.title, f"failed: not at its end after {part.limit_s} s", failed=True, output=lines)
    if code:
        return Shown(part.title, f"failed: exit code {code}, {took}", failed=True, output=lines)
    skipped = re.search(r"\b\d+ skipped\b", lines[-1] if lines else "")
    return Shown(part.title, f"not run: {skipped[0]}, {took}" if skipped else f"passed, {took}", output=lines)


def _run(part: Part, environment: Mapping[str, str]) -> tuple[int | None, bytes]:
    """Exit code, None at the limit, and output. No process that it began is left."""
    with subprocess.Popen(
        part.command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as ran:
        try:
            output, _ = ran.communicate(timeout=part.limit_s)
            return ran.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(ran.pid, signal.SIGKILL)
            return None, ran.communicate()[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ran.pid, signal.SIGKILL)


def written(machine: Machine, shown: Sequence[Shown]) -> str:
    """The report as Markdown."""
    head = ["# On a GPU", "", "Made by `make gpu-report`.", ""]
    if not machine.gpus:
        return "\n".join([*head, NOT_RUN, ""])
    head += [f"{', '.join(machine.gpus)}; torch {torch.__version__}; vLLM: {machine.vllm or 'none'}.", ""]
    rows = ["| part | outcome |", "|---|---|", *(f"| {part.title} | {part.verdict} |" for part in shown)]
    outputs = [["", f"## {part.title}", "", "```", *part.output, "```"] for part in shown if part.output]
    return "\n".join([*head, *rows, *(line for lines in outputs for line in lines), ""])


def report(machine: Machine, parts: Sequence[Part], out: Path) -> int:
    """Run what can run, and write the report after every part; returns the exit code."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if not machine.gpus:
        sys.stdout.write(f"{NO_GPU}\n")
        if not out.exists():  # what another machine measured stays
            out.write_text(written(machine, ()))
        return 0
    vllm = {} if machine.vllm is None else {"RATCHET_VLLM": machine.vllm}
    environment = {**os.environ, **vllm, "PYTHONPATH": str(REPOSITORY / "services")}
    shown: list[Shown] = []
    for part in parts:
        why = lacks(part, machine)
        shown.append(show(part, environment) if why is None else Shown(part.title, f"not run: {why}"))
        sys.stdout.write(f"{part.title}: {shown[-1].verdict}\n")
        out.write_text(written(machine, shown))
    return 1 if any(ran.failed for ran in shown) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs", "gpu-report.md"), help="the report")
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    machine = Machine(gpus, os.environ.get("RATCHET_VLLM") or shutil.which("vllm"))
    return report(machine, PARTS, parser.parse_args().out)


if __name__ == "__main__":
    sys.exit(main())
