"""The evaluator's command: its environment, its complaints, and that none of its processes is left running."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from pathlib import Path

import psutil

from ratchet.bus.testing import eventually
from ratchet.canary_deployer.gates.base import HeldoutRun
from ratchet.canary_deployer.subprocess_judge import MOST_BYTES, SubprocessJudge


async def judged(script: str, deadline_s: float = 30.0) -> HeldoutRun:
    return await SubprocessJudge(shlex.join([sys.executable, "-c", script]), deadline_s).judge("support", [])


async def test_a_failing_command_is_reported_with_the_end_of_its_complaint() -> None:
    run = await judged("import sys; sys.exit('no judge')")
    assert run.problem == "the command ended with 1: no judge"


async def test_a_command_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    """A kill -9 leaves nothing that goes on playing beside the command of the next process."""
    mark = tmp_path / "command"
    command = f"import os, signal; print(os.getpid(), file=open({str(mark)!r}, 'w')); signal.pause()"
    asking = f"""
import asyncio, shlex, sys
from ratchet.canary_deployer.subprocess_judge import SubprocessJudge
asyncio.run(SubprocessJudge(shlex.join([sys.executable, "-c", {command!r}]), 300).judge("support", []))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", asking)

    async def begun() -> int | None:
        return int(mark.read_text()) if mark.exists() and mark.read_text().endswith("\n") else None

    pid = await eventually(begun)
    process.kill()
    assert await process.wait() == -signal.SIGKILL

    async def gone() -> bool:
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    assert await eventually(gone)


async def test_a_missing_command_is_reported() -> None:
    run = await SubprocessJudge("/no/such/command", 5).judge("support", [])
    assert run.problem is not None
    assert run.problem.startswith("cannot run '/no/such/command'")


async def test_a_command_that_hangs_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    script = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open({str(mark)!r}, "w").write(str(child.pid))
signal.pause()
"""
    run = await judged(script, deadline_s=3)
    assert run.problem == "not finished after 3 s"
    child = int(mark.read_text())

    async def gone() -> bool:
        return not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE

    await eventually(gone)


async def test_a_process_that_left_the_commands_group_does_not_delay_its_end(tmp_path: Path) -> None:
    mark = tmp_path / "left"
    script = f"""
import signal, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
open({str(mark)!r}, "w").write(str(left.pid))
signal.pause()
"""
    try:
        async with asyncio.timeout(30):
            run = await judged(script, deadline_s=3)
        assert run.problem == "not finished after 3 s"
    finally:
        psutil.Process(int(mark.read_text())).kill()


async def test_a_process_that_left_the_group_cannot_print_after_the_end(tmp_path: Path) -> None:
    mark = tmp_path / "left"
    printing = "while True: print('x' * 1000, flush=True)"
    script = f"""
import signal, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", {printing!r}], start_new_session=True)
open({str(mark)!r}, "w").write(str(left.pid))
signal.pause()
"""
    run = await judged(script)
    assert run.problem == f"it printed more than {MOST_BYTES} bytes"
    left = int(mark.read_text())

    async def gone() -> bool:
        return not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE

    assert await eventually(gone)
