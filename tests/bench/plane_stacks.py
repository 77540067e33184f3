"""Embedded stacks of several commits beside each other, to measure the event plane of each with its own programs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import nats
import psutil
from nats.aio.client import Client as Nats

from ratchet.bus.nats_client import read_seed
from ratchet.local.local_stack.broker_users import ADMIN, broker_users

HERE = "this tree"
CHECKOUTS = Path(".cache/plane")
"""Trees and environments of other commits: made once, used again."""
MEMBERS = "nats,s3,clickhouse,trajectory_collector,reward_computer"


@dataclass(frozen=True)
class Stack:
    """A running stack, without gateway, trainer and engine."""

    name: str
    """A commit, or `HERE`."""
    python: str
    env: dict[str, str]
    pids: dict[str, int]
    """Of its members, by name."""
    clickhouse: httpx.Client
    directory: Path
    """Of its state."""

    async def broker(self) -> Nats:
        """A connection to its broker that may do everything, also where the broker knows no users."""
        seed = broker_users(self.directory).seed_file(ADMIN)
        key: dict[str, Any] = {"nkeys_seed_str": read_seed(seed).seed} if seed.exists() else {}
        return await nats.connect(self.env["RATCHET_NATS_URL"], **key)

    def rows(self, query: str) -> list[Any]:
        """What its ClickHouse answers, as JSON rows."""
        query = query if query.startswith(("INSERT", "CREATE")) else f"{query} FORMAT JSONEachRow"
        answer = self.clickhouse.post(self.env["RATCHET_CLICKHOUSE_URL"], content=query).raise_for_status()
        return [json.loads(line) for line in answer.text.splitlines()]

    def count(self, table: str) -> int:
        """Rows of a table."""
        return int(self.rows(f"SELECT count() AS n FROM ratchet.{table}")[0]["n"])

    def processor_s(self) -> dict[str, float]:
        """Seconds of processor time so far, by member."""
        return {name: sum(map(_seconds, _family(pid))) for name, pid in self.pids.items()}

    def memory_mb(self) -> dict[str, float]:
        """Resident memory in MB, by member."""
        return {name: sum(one.memory_info().rss for one in _family(pid)) / 1e6 for name, pid in self.pids.items()}


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def running_stack(commit: str, folder: Path) -> Iterator[Stack]:
    """The stack of a commit, or of `HERE`, with its state in `folder`; stopped afterwards."""
    python = sys.executable if commit == HERE else str(_environment(commit))
    state = folder / commit.replace(" ", "-")
    ratchet = [python, "-m", "ratchet.cli"]
    up = ["up", "--detach", "--free-ports", "--dir", str(state), "--only", MEMBERS, "--json"]
    subprocess.run([*ratchet, *up], check=True, capture_output=True, timeout=300)
    record = json.loads((state / "stack.json").read_text())
    pids = {name: service["pid"] for name, service in record["services"].items() if name in MEMBERS.split(",")}
    try:
        with httpx.Client(timeout=60, verify=False) as client:  # plain HTTP: certificates would be read for nothing
            yield Stack(commit, python, record["env"], pids, client, state)
    finally:
        subprocess.run([*ratchet, "down", "--dir", str(state)], check=False, capture_output=True, timeout=300)


def _environment(commit: str) -> Path:
    """The Python of an environment that has the commit's `ratchet` over all packages of this one."""
    tree = (CHECKOUTS / commit).absolute()
    python = tree / ".venv/bin/python"
    if not python.exists():
        archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(tree, filter="data")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tree / ".venv")], check=True)
        (below,) = (Path(place) for place in sys.path if place.endswith("site-packages"))
        (packages,) = (tree / ".venv/lib").glob("python*/site-packages")
        # A path file after that of the editable install, which therefore comes first.
        (packages / "z_below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
        _install(python, tree)
    return python


def _install(python: Path, tree: Path) -> None:
    uv: Sequence[str] = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*uv, "--python", str(python), "-e", str(tree)], check=True)
