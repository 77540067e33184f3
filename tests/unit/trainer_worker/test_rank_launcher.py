"""The processes of a training end together, and the reason is that of the one that failed. No torch, no training."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from ratchet.trainer_worker.app import OWN_CLUSTER, RAY_CHILD
from ratchet.trainer_worker.job import Failed, decode_event
from ratchet.trainer_worker.slots import Slot
from ratchet.trainer_worker.training.ray_rank import interface_of
from tests.support.trainer_runs import job_spec

SCRIPT = """
import os, signal, sys, threading
from ratchet.trainer_worker.job import Failed
from ratchet.trainer_worker.training.rank_launcher import fork_ranks

ready, go = os.pipe()

def rank(index):
    os.read(ready, 1)
    {rank}

events = os.fdopen(os.dup(1), "wb")
launcher = fork_ranks(3, rank, events)
print(*launcher.pids, file=sys.stderr, flush=True)
os.write(go, b"go")
{first}
"""
DEADLINE_S = 60.0


def run(rank: str, first: str) -> tuple[int, list[object], list[int]]:
    """(exit status, events, ids of the other ranks) of three processes."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(rank=rank, first=first)], capture_output=True, timeout=120, check=False
    )
    events = [decode_event(line) for line in ended.stdout.splitlines()]
    return ended.returncode, list(events), [int(pid) for pid in ended.stderr.split()]


@pytest.mark.parametrize("first", ["signal.pause()", "launcher.explain(); signal.pause()"])
def test_the_failure_of_a_rank_is_that_of_the_training(first: str) -> None:
    code, events, pids = run('return Failed(code="OOM", message="no memory") if index == 2 else signal.pause()', first)
    assert (code, events) == (1, [Failed(code="OOM", message="no memory")])
    ended(pids)


@pytest.mark.parametrize(
    ("end", "reason"), [("os._exit(7)", "ended with status 7"), ("os.kill(os.getpid(), 9)", "was ended by SIGKILL")]
)
def test_a_rank_that_dies_without_a_word_is_an_infrastructure_failure(end: str, reason: str) -> None:
    code, events, pids = run(f"{end} if index == 1 else signal.pause()", "signal.pause()")
    assert (code, events) == (1, [Failed(code="INFRA", message=f"process 2 of the training {reason}")])
    ended(pids)


@pytest.mark.parametrize("first", ["os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_however_the_first_rank_ends_the_others_do(first: str) -> None:
    _, events, pids = run("signal.pause()", first)
    assert events == []
    ended(pids)


def test_ranks_that_are_done_are_no_failure() -> None:
    """Both have been noticed when the threads that wait for them have ended."""
    watched = "[thread.join(60) for thread in threading.enumerate() if thread.daemon]"
    assert run("return None", watched)[:2] == (0, [])


def ended(pids: list[int]) -> None:
    assert len(pids) == 2
    for pid in pids:
        if psutil.pid_exists(pid):
            psutil.Process(pid).wait(DEADLINE_S)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here: see tests/ray")
async def test_without_ray_the_training_fails_in_words(tmp_path: Path) -> None:
    child = await Slot("one", ranks=2, program=(RAY_CHILD, OWN_CLUSTER)).start(job_spec("sft"), tmp_path)
    events = [event async for event in child.events()]
    assert (await child.wait()).code == 1
    (last,) = events
    assert isinstance(last, Failed)
    assert last.message == "training on Ray needs the extra `ray`: pip install 'ratchet-rl[ray]'"


def test_an_address_has_an_interface_where_the_machine_knows_it() -> None:
    assert interface_of("127.0.0.1") in ("lo", "lo0")
    assert interface_of("203.0.113.1") is None
