"""What `ratchet doctor` looks at without any server: this machine, the settings, the processes of the stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Literal

import psutil

from ratchet.bus.spool import Spool
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.output import follow_up
from ratchet.errors import ConfigError, RatchetError
from ratchet.local_stack.configuration import faults_of, kinds, warnings_of
from ratchet.local_stack.disk import LOG_BYTES, START_BYTES
from ratchet.local_stack.preflight import planned
from ratchet.local_stack.settings import StackSettings
from ratchet.local_stack.state import read_record
from ratchet.service.contracts import load_contracts
from ratchet.service.disk import LOW_BYTES, free_bytes, shortage
from ratchet.service.readiness import readiness
from ratchet.service.settings_file import find_file

OLDEST_PYTHON = (3, 11)
LOW_MEMORY, LITTLE_MEMORY = 256 << 20, 1 << 30
"""Bytes that are free: below the first the kernel soon ends processes, below the second a training does not fit."""
ANSWER_S = 4.0
DATA = ".ratchet/data"
"""Where clients keep spools by default."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check says, and what to do about it."""

    state: Literal["ok", "warning", "failure"]
    sentence: str
    remedy: str | None = None


def ok(sentence: str) -> Finding:
    """Nothing is wrong."""
    return Finding("ok", sentence)


def warning(sentence: str, remedy: str | None) -> Finding:
    """It works, and may soon not."""
    return Finding("warning", sentence, remedy)


def failure(sentence: str, remedy: str | None) -> Finding:
    """It does not work."""
    return Finding("failure", sentence, remedy)


def check_python(_: Endpoints) -> Finding:
    """The interpreter."""
    version = sys.version.split()[0]
    if sys.version_info < OLDEST_PYTHON:
        return failure(f"Python {version}", f"use Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return ok(f"Python {version}")


def check_memory(_: Endpoints) -> Finding:
    """Room in memory."""
    free = psutil.virtual_memory().available
    sentence = f"{free / 1e9:.1f} GB of memory free"
    if free < LOW_MEMORY:
        return failure(sentence, "stop other programs: the kernel ends processes when memory runs out")
    if free < LITTLE_MEMORY:
        return warning(sentence, "a training loads a model: stop other programs, or train on another machine")
    return ok(sentence)


def check_disk(endpoints: Endpoints) -> Finding:
    """Room on the disk, against what the servers need and what the streams may still take."""
    free = free_bytes(endpoints.directory)
    least = LOW_BYTES if endpoints.record is not None else START_BYTES
    if missing := shortage(free, least, endpoints.directory):
        return failure(missing, "free some room: the servers refuse to write on a full disk")
    bound = sum(stream.max_bytes or 0 for stream in load_contracts().streams.values())
    sentence = f"{free / 1e9:.1f} GB free; streams take up to {bound / 1e9:.1f} GB"
    if free < bound:
        return warning(sentence, "free some room before they grow, or bound them by RATCHET_STREAM_MAX_BYTES")
    return ok(sentence)


def check_settings(_: Endpoints) -> Finding:
    """All settings of all services, as `ratchet config check` reads them."""
    file = find_file(os.environ)
    faults = list(faults_of(file, os.environ, {name: {} for name in kinds()}))
    if faults:
        return failure("; ".join(faults), "`ratchet config show` says where each setting comes from")
    notices = list(warnings_of(file, os.environ))
    return warning("; ".join(notices), "`ratchet config show` lists what is in effect") if notices else ok("valid")


def check_stack(endpoints: Endpoints) -> Finding:
    """Whether a stack runs here, and whether an earlier one has left something behind."""
    directory, up = endpoints.directory, follow_up("up", directory=endpoints.directory)
    if endpoints.record is not None:
        state = "ready" if endpoints.record.ready else "still starting"
        return ok(f"supervisor pid {endpoints.record.pid}, {state}")
    if endpoints.orphans:
        return failure(endpoints.absence(), f"`{follow_up('down', directory=directory)}` ends them")
    if endpoints.known:
        return ok("none here: the environment's addresses lead elsewhere")
    if read_record(directory) is not None:
        return warning(f"stack.json in {directory} is of a stack that is gone", f"`{up}` starts anew and replaces it")
    return warning(f"no stack runs in {directory}", f"`{up}` starts one")


def check_start(endpoints: Endpoints) -> Finding:
    """What a start would be refused for: ports that are taken, missing programs, the directory."""
    if endpoints.known or endpoints.orphans:
        return ok("nothing to start")
    try:
        plan = planned(StackSettings(directory=endpoints.directory, file=find_file(os.environ)))
    except (ConfigError, RatchetError) as error:
        return failure(" ".join(str(error).split()), "`--port NAME=PORT` and `--free-ports` choose other ports")
    return ok(f"{len(plan.programs)} programs and their ports are free to start")


def check_processes(endpoints: Endpoints) -> Finding:
    """Every process of the stack: whether it lives, runs and answers."""
    if endpoints.record is None:
        return ok("none of a stack here")
    faults: list[str] = []
    restarts: list[str] = []
    for name, member in endpoints.record.services.items():
        try:
            process = psutil.Process(member.pid)
            if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                faults.append(f"{name} (pid {member.pid}) is {process.status()}")
                continue
        except psutil.NoSuchProcess:
            faults.append(f"{name} (pid {member.pid}) is gone")
            continue
        if member.health_port is not None:
            reason, _ = readiness(f"http://127.0.0.1:{member.health_port}/readyz", ANSWER_S)
            if reason is not None:
                faults.append(f"{name} is not ready: {reason}")
        if member.restarts:
            restarts.append(f"{name} {member.restarts}")
    if faults:
        return failure("; ".join(faults), "`ratchet logs SERVICE` has its last lines; the supervisor restarts it")
    sentence = f"{len(endpoints.record.services)} run and answer"
    if restarts:
        return warning(f"{sentence}; restarted: {', '.join(restarts)}", "`ratchet logs SERVICE` says why it ended")
    return ok(sentence)


def check_logs(endpoints: Endpoints) -> Finding:
    """The sizes of the log files, which the supervisor cuts."""
    sizes = {log.name: log.stat().st_size for log in (endpoints.directory / "logs").glob("*.log*")}
    long = sorted(name for name, size in sizes.items() if size > 2 * LOG_BYTES)
    sentence = f"{len(sizes)} files, {sum(sizes.values()) / 1e6:.1f} MB"
    if long:
        return warning(
            f"{sentence}; longer than they should be: {', '.join(long)}", "the supervisor cuts no log: is it alive?"
        )
    return ok(sentence)


def check_spools(endpoints: Endpoints) -> Finding:
    """Records that clients and gateways have kept because the broker was away, and no process has sent since."""
    data = {Path(endpoints.env.get("RATCHET_DATA_DIR", DATA)), endpoints.directory / "data"}
    parents = [one for folder in data for one in (folder / "client-spool", *folder.glob("*/spool"), folder / "spool")]
    parents += Path(gettempdir()).glob("ratchet-client-spool-*")
    left: dict[str, int] = {}
    for folder in {one.resolve() for parent in parents for one in (parent, *parent.glob("*")) if one.is_dir()}:
        if any(folder.glob("*.segment")) and (pending := _pending(folder)):
            left[str(folder)] = pending
    if not left:
        return ok("no records wait")
    sentence = "; ".join(f"{pending} records wait in {folder}" for folder, pending in sorted(left.items()))
    return warning(sentence, "the next client or gateway that starts there sends them")


def _pending(folder: Path) -> int:
    """Records that no process has sent; none of a spool that a running process holds: it is at work."""
    try:
        spool = Spool(folder, 1 << 40)
    except (ConfigError, OSError):
        return 0
    try:
        return spool.pending
    finally:
        spool.close()


MACHINE: Mapping[str, Callable[[Endpoints], Finding]] = {
    "python": check_python,
    "memory": check_memory,
    "disk": check_disk,
    "settings": check_settings,
    "stack": check_stack,
    "start": check_start,
    "processes": check_processes,
    "logs": check_logs,
    "spools": check_spools,
}
"""The checks by name, in the order of the report."""
