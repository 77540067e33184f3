"""Ends what a supervisor that was killed has left behind, and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from ratchet.local.local_stack.state import MemberRecord, StackRecord

STACK_ID_VARIABLE = "RATCHET_STACK_ID"
"""Every process of a stack carries the stack's id in its environment."""

GRACE_S = 8.0
"""From the polite signal to the other one."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STARTTIME = 19
"""Place in /proc/PID/stat after the name (field 22): clock ticks from the boot to the start (proc_pid_stat(5))."""


def birth(pid: int) -> str:
    """The boot, and the ticks from it to the start: no set clock moves them. Empty for no process."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return f"{BOOT_ID.read_text().strip()} {after_name[STARTTIME].decode()}"
    except OSError:
        return ""


def reload_broker(stack: StackRecord | None) -> bool:
    """Have the broker of a running stack read its users and certificates again; false where none runs."""
    if stack is None or not is_running(stack) or (pid := stack.services["nats"].pid) is None:
        return False
    os.kill(pid, signal.SIGHUP)
    return True


def is_running(recorded: StackRecord | MemberRecord) -> bool:
    """True when the recorded process still has its pid."""
    if recorded.pid is None:
        return False
    try:
        process = psutil.Process(recorded.pid)
        return process.status() != psutil.STATUS_ZOMBIE and birth(recorded.pid) == recorded.born
    except psutil.NoSuchProcess:
        return False


def living(record: StackRecord) -> dict[str, list[int]]:
    """The members of the recorded stack that still run, with the pids of their groups."""
    groups = _groups(record)
    return {name: [process.pid for process in group] for name, group in groups.items() if group}


def end_orphans(record: StackRecord) -> list[str]:
    """End every process of the recorded stack that still runs, with its group; returns the names of the members."""
    groups = _groups(record)
    processes = [process for group in groups.values() for process in group]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs(processes, timeout=GRACE_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=GRACE_S)
    return [name for name, group in groups.items() if group]


def _groups(record: StackRecord) -> dict[str, list[psutil.Process]]:
    return {name: list(_group(member, record.stack_id)) for name, member in record.services.items()}


def _group(member: MemberRecord, stack_id: str) -> Iterator[psutil.Process]:
    """The members of a process group: a pid may be someone else's by now, so each must prove that it is ours."""
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) != member.pid:
                continue
            leader = process.pid == member.pid and birth(process.pid) == member.born
            if leader or process.environ().get(STACK_ID_VARIABLE) == stack_id:
                yield process
        except (psutil.Error, OSError):
            # It ended meanwhile, or belongs to another user and so is not ours.
            continue
