"""The held-out command as a subprocess: what it prints is read as results, what it leaves running is ended."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from ratchet.canary_deployer.domain.heldout import Played, read_results
from ratchet.canary_deployer.gates.base import HeldoutRun
from ratchet.kernel.files import write_whole
from ratchet.messages.state import PolicyVersion

log = structlog.get_logger()

STDERR_TAIL = 400
"""Characters of the command's complaint that are reported."""


@dataclass(frozen=True, slots=True)
class HeldoutPlan:
    """What to run, and where its results are kept."""

    command: str
    tasks: int
    seed: int
    gateway_url: str
    deadline_s: float
    cache: Path
    gateway_api_key: str | None = field(default=None, repr=False)
    """Of a gateway that asks for one; the command gets it in its environment."""


class SubprocessHeldout:
    """Runs the command once per policy: `RATCHET_POLICY` says which."""

    def __init__(self, plan: HeldoutPlan) -> None:
        self._plan = plan
        self.tasks = plan.tasks

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        """Run the command to its end or to the deadline.

        A complete run is remembered: the candidate of today is the stable policy of tomorrow's comparison.
        """
        started = time.monotonic()
        process = await self._start(policy)
        if isinstance(process, str):
            return HeldoutRun(Played(), 0.0, process)
        try:
            async with asyncio.timeout(self._plan.deadline_s):
                out, err = await process.communicate()
        except TimeoutError:
            return HeldoutRun(Played(), self._plan.deadline_s, f"not finished after {self._plan.deadline_s:g} s")
        finally:
            await _end(process)
        played = read_results(out.decode(errors="replace").splitlines())
        run = HeldoutRun(played, time.monotonic() - started, _complaint(process.returncode, err))
        if run.problem is None and played.scores:
            await asyncio.to_thread(_write, self._path(policy), played)
        return run

    async def replay(self, policy: PolicyVersion) -> HeldoutRun:
        """The remembered results of this policy, seed, number and command; else a run."""
        known = await asyncio.to_thread(_read, self._path(policy))
        if known is not None:
            return HeldoutRun(known, 0.0, cached=True)
        return await self.play(policy)

    async def _start(self, policy: PolicyVersion) -> asyncio.subprocess.Process | str:
        """The running command, or why it does not run."""
        try:
            return await asyncio.create_subprocess_exec(
                *shlex.split(self._plan.command),
                env={**os.environ, **self._environment(policy)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"cannot run {self._plan.command!r}: {error}"

    def _environment(self, policy: PolicyVersion) -> Mapping[str, str]:
        key = self._plan.gateway_api_key
        return {
            **({"RATCHET_GATEWAY_API_KEY": key, "RATCHET_CLIENT_API_KEY": key} if key else {}),
            "RATCHET_GATEWAY_URL": self._plan.gateway_url,
            "RATCHET_POLICY": f"{policy.role}@{policy.version}",
            "RATCHET_HELDOUT_TASKS": str(self._plan.tasks),
            "RATCHET_HELDOUT_SEED": str(self._plan.seed),
        }

    def _path(self, policy: PolicyVersion) -> Path:
        parts = (policy.digest, self._plan.seed, self._plan.tasks, self._plan.command)
        return self._plan.cache / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Whatever the command started goes with it, also when we are cancelled."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _complaint(returncode: int | None, err: bytes) -> str | None:
    if returncode == 0:
        return None
    tail = err.decode(errors="replace").strip()[-STDERR_TAIL:].replace("\n", " | ")
    return f"the command ended with {returncode}: {tail or 'it said nothing'}"


def _read(path: Path) -> Played | None:
    """A cache entry that cannot be read is none: the run is simply repeated."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Played)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("held-out cache entry ignored", path=str(path), reason=str(error))
        return None


def _write(path: Path, played: Played) -> None:
    """Complete or not at all. A full disk costs the cache, not the gate."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(played), durable=False)
    except OSError as error:
        log.warning("held-out results not remembered", path=str(path), reason=str(error))
