"""The held-out command: what it prints is read as results, and remembered."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from ratchet.canary_deployer.domain.paired import Played, read_results
from ratchet.canary_deployer.gates.base import HeldoutRun
from ratchet.canary_deployer.subprocess_command import Command, run
from ratchet.contract.state import PolicyVersion
from ratchet.service.files import write_whole

log = structlog.get_logger()

MOST_BYTES = 64 * 1024 * 1024
"""Of what the command prints: some hundred thousand tasks."""


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
        command = Command(self._plan.command, self._plan.deadline_s, MOST_BYTES)
        ended = await run(command, self._environment(policy))
        played = read_results(ended.lines)
        if ended.problem is None and played.scores:
            await asyncio.to_thread(_write, self._path(policy), played)
        return HeldoutRun(played, ended.seconds, ended.problem)

    async def replay(self, policy: PolicyVersion) -> HeldoutRun:
        """The remembered results of this policy, seed, number and command; else a run."""
        known = await asyncio.to_thread(_read, self._path(policy))
        if known is not None:
            return HeldoutRun(known, 0.0, cached=True)
        return await self.play(policy)

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
