"""What `ratchet doctor` looks at without any server: this machine, the settings, the processes of the stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import Literal

import psutil

from ratchet.bus.spool import waiting_in
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.output import follow_up
from ratchet.core.errors import ConfigError, RatchetError
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.files import LOW_BYTES, durable_write_s, free_bytes, shortage
from ratchet.core.service.readiness import readiness
from ratchet.core.service.settings_file import find_file
from ratchet.local.local_stack.configuration import faults_of, kinds, warnings_of
from ratchet.local.local_stack.log_files import LOG_BYTES
from ratchet.local.local_stack.member import WELL
from ratchet.local.local_stack.preflight import START_BYTES, planned
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.state import MemberRecord, read_record

OLDEST_PYTHON = (3, 11)
LOW_MEMORY, LITTLE_MEMORY = 256 << 20, 1 << 30
"""Bytes that are free: below the first the kernel soon ends processes, below the second a training does not fit."""
SLOW_DISK_S = 0.25
"""A disk takes milliseconds for a small durable write; a stack makes dozens of them when it starts or is backed up."""
WRITES = 5
"""Of which the median counts: one may wait for what others write."""
ANSWER_S = 4.0
State = Literal["ok", "warning", "failure"]
DATA = Path(".ratchet/data")
"""Where clients keep spools by default: below the directory that they were started in."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check says, and what to do about it."""

    state: State
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


def combined(findings: Sequence[Finding]) -> Finding:
    """Several as one: the worst state, every sentence, and what to do about those that are amiss."""
    states: set[State] = {finding.state for finding in findings}
    state: State = "failure" if "failure" in states else "warning" if "warning" in states else "ok"
    remedies = dict.fromkeys(finding.remedy for finding in findings if finding.remedy and finding.state != "ok")
    return Finding(state, "; ".join(finding.sentence for finding in findings), "; ".join(remedies) or None)


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


def check_disk_speed(endpoints: Endpoints) -> Finding:
    """How long the disk of the state takes for a small durable write."""
    if not endpoints.directory.is_dir():
        return ok("nothing is stored here yet")
    try:
        return speed_of([durable_write_s(endpoints.directory) for _ in range(WRITES)])
    except OSError as error:
        return failure(f"{endpoints.directory} cannot be written: {error.strerror}", "the servers write there, too")


def speed_of(seconds: Sequence[float]) -> Finding:
    """What the times of some writes mean."""
    typical = median(seconds)
    sentence = f"a small durable write takes {typical * 1000:.1f} ms"
    if typical > SLOW_DISK_S:
        return warning(
            f"{sentence}: rewards and trainings lag, starts and stops take long, nothing is lost",
            "use a disk of this machine that other programs leave alone, not a network share",
        )
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
        return failure(" ".join(str(error).split()), None)
    return ok(f"{len(plan.programs)} programs and their ports are free to start")


def check_processes(endpoints: Endpoints) -> Finding:
    """Every process of the stack: whether it lives, runs and answers."""
    if endpoints.record is None:
        return ok("none of a stack here")
    services = endpoints.record.services
    faults = [fault for name, member in services.items() if (fault := _fault_of(name, member))]
    restarts = [
        f"{name} {member.restarts} (last: {member.restarted})" for name, member in services.items() if member.restarts
    ]
    if faults and free_bytes(endpoints.directory) < LOW_BYTES:
        faults.append("on a full disk stack.json may be older than a restart")
    if faults:
        return failure("; ".join(faults), "`ratchet logs SERVICE` has its last lines; the supervisor restarts it")
    later = [name for name, member in services.items() if member.pid is None]
    sentence = f"{len(services) - len(later)} run and answer"
    if later:
        sentence += f"; {' and '.join(later)} {'starts' if len(later) == 1 else 'start'} when needed"
    if restarts:
        return warning(f"{sentence}; restarted: {', '.join(restarts)}", "`ratchet logs SERVICE` says why it ended")
    return ok(sentence)


def _fault_of(name: str, member: MemberRecord) -> str | None:
    if member.pid is None:
        return None
    try:
        process = psutil.Process(member.pid)
        if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            return f"{name} (pid {member.pid}) is {process.status()}"
    except psutil.NoSuchProcess:
        return f"{name} (pid {member.pid}) is gone"
    if member.health_port is None:  # a server's state is the one that the supervisor saw last
        return None if member.state in WELL else f"{name} is {member.state}: {member.reason}"
    reason, _ = readiness(f"http://127.0.0.1:{member.health_port}/readyz", ANSWER_S)
    return None if reason is None else f"{name} is not ready: {reason}"


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
    """Records that clients and gateways have kept because the broker was away, and no process has sent since.

    Only those below this stack's own folders are its fault; those of other stacks and of other programs are named.
    """
    own = (endpoints.directory / "data", *map(Path, filter(None, [endpoints.env.get("RATCHET_DATA_DIR")])))
    left = {folder.resolve(): pending for parent in own for folder, pending in _left_in(_spools_below(parent))}
    others = (
        (_spools_below(DATA.resolve()), f"of programs that were started in {Path.cwd()}"),
        (sorted(Path(gettempdir()).glob("ratchet-client-spool-*")), "shared by all programs of a user"),
    )
    elsewhere = [
        f"{_records(pending)} in {folder}, {whose}, not of this stack"
        for parents, whose in others
        for folder, pending in _left_in(parents)
        if folder.resolve() not in left
    ]
    sentences = [f"{_records(pending)} in {folder}" for folder, pending in sorted(left.items())]
    if sentences:
        return warning("; ".join([*sentences, *elsewhere]), "the next client or gateway that starts there sends them")
    return ok("; ".join(["no records of this stack wait", *elsewhere]))


def _records(pending: int) -> str:
    return "1 record waits" if pending == 1 else f"{pending} records wait"


def _spools_below(data: Path) -> list[Path]:
    """The folders of spools in a folder of data: clients' and gateways'."""
    return [data / "client-spool", *data.glob("*/spool"), data / "spool"]


def _left_in(parents: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Each spool that holds records, with their number."""
    for folder in (path for parent in parents for path in (parent, *parent.glob("*")) if path.is_dir()):
        if pending := waiting_in(folder):
            yield folder, pending


MACHINE: Mapping[str, Callable[[Endpoints], Finding]] = {
    "python": check_python,
    "memory": check_memory,
    "disk": check_disk,
    "disk speed": check_disk_speed,
    "settings": check_settings,
    "stack": check_stack,
    "start": check_start,
    "processes": check_processes,
    "logs": check_logs,
    "spools": check_spools,
}
"""The checks by name, in the order of the report."""
