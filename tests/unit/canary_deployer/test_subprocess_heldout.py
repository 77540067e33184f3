"""The held-out command: its environment, how its output is read, and that none of its processes is left running."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from pathlib import Path

import psutil

from ratchet.bus.testing import eventually
from ratchet.canary_deployer.subprocess_evaluations import HeldoutPlan, SubprocessHeldout
from tests.support.canary_world import policy

REPORT = """
import json, os
settings = [os.environ[name] for name in ("RATCHET_POLICY", "RATCHET_HELDOUT_SEED")]
for n in range(int(os.environ["RATCHET_HELDOUT_TASKS"])):
    print(json.dumps({"task": f"{' '.join(settings)} {n}", "success": True}))
print("done")
"""


def heldout(tmp_path: Path, script: str, deadline_s: float = 30.0, seed: int = 5) -> SubprocessHeldout:
    command = shlex.join([sys.executable, "-c", script])
    return SubprocessHeldout(HeldoutPlan(command, 3, seed, "http://gateway", deadline_s, tmp_path / "cache"))


async def test_the_command_reads_policy_tasks_and_seed_from_its_environment(tmp_path: Path) -> None:
    run = await heldout(tmp_path, REPORT).play(policy(2))
    assert sorted(run.played.scores) == ["support@2 5 0", "support@2 5 1", "support@2 5 2"]
    assert (run.played.malformed, run.problem) == (1, None)


async def test_the_command_gets_the_gateways_key_in_its_environment_and_no_log_shows_it(tmp_path: Path) -> None:
    script = 'import json, os; print(json.dumps({"task": os.environ["RATCHET_GATEWAY_API_KEY"], "success": True}))'
    command = shlex.join([sys.executable, "-c", script])
    plan = HeldoutPlan(command, 1, 0, "http://gateway", 30, tmp_path, gateway_api_key="sk-planted")
    assert list((await SubprocessHeldout(plan).play(policy(2))).played.scores) == ["sk-planted"]
    assert "sk-planted" not in repr(plan)


async def test_a_failing_command_is_reported_with_the_end_of_its_complaint(tmp_path: Path) -> None:
    run = await heldout(tmp_path, "import sys; sys.exit('no gateway')").play(policy(2))
    assert run.problem == "the command ended with 1: no gateway"


async def test_a_command_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    """A kill -9 leaves nothing that goes on playing beside the command of the next process."""
    mark = tmp_path / "command"
    command = f"import os, signal; print(os.getpid(), file=open({str(mark)!r}, 'w')); signal.pause()"
    asking = f"""
import asyncio, shlex, sys
from ratchet.canary_deployer.subprocess_command import Command, run
asyncio.run(run(Command(shlex.join([sys.executable, "-c", {command!r}]), 300, 1000), {{}}))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", asking)

    async def begun() -> int | None:
        return int(mark.read_text()) if mark.exists() and mark.read_text().endswith("\n") else None

    pid = await eventually(begun, 60)
    process.kill()
    assert await process.wait() == -signal.SIGKILL

    async def gone() -> bool:
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    assert await eventually(gone, 30)


async def test_a_missing_command_is_reported(tmp_path: Path) -> None:
    plan = HeldoutPlan("/no/such/command", 3, 0, "http://gateway", 5, tmp_path)
    run = await SubprocessHeldout(plan).play(policy(2))
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
    run = await heldout(tmp_path, script, deadline_s=3).play(policy(2))
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
            run = await heldout(tmp_path, script, deadline_s=3).play(policy(2))
        assert run.problem == "not finished after 3 s"
    finally:
        psutil.Process(int(mark.read_text())).kill()


async def test_stables_results_are_cached_by_policy_seed_and_command(tmp_path: Path) -> None:
    first = await heldout(tmp_path, REPORT).play_or_recall(policy(1))
    again = await heldout(tmp_path, REPORT).play_or_recall(policy(1))
    assert (first.cached, again.cached) == (False, True)
    assert again.played == first.played
    assert not (await heldout(tmp_path, REPORT).play_or_recall(policy(2))).cached
    assert not (await heldout(tmp_path, REPORT, seed=6).play_or_recall(policy(1))).cached


async def test_the_results_of_a_candidate_are_cached_for_when_it_is_stable(tmp_path: Path) -> None:
    fresh = await heldout(tmp_path, REPORT).play(policy(1))
    later = await heldout(tmp_path, REPORT).play_or_recall(policy(1))
    assert (fresh.cached, later.cached) == (False, True)
    assert later.played == fresh.played


async def test_a_failed_run_or_a_damaged_cache_entry_is_played_again(tmp_path: Path) -> None:
    broken = heldout(tmp_path, "raise SystemExit(1)")
    assert (await broken.play_or_recall(policy(1))).problem is not None
    assert (await broken.play_or_recall(policy(1))).problem is not None
    working = heldout(tmp_path, REPORT)
    await working.play_or_recall(policy(1))
    for entry in (tmp_path / "cache").iterdir():
        entry.write_text("{")
    assert not (await working.play_or_recall(policy(1))).cached


async def test_a_full_disk_costs_the_cache_entry_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    assert (await heldout(tmp_path, REPORT).play_or_recall(policy(1))).problem is None
