"""The operator's two commands that evaluate policies: held-out tasks, and judgements of answers to logged prompts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.paired import Played, read_results
from ratchet.canary_deployer.gates.base import HeldoutRun
from ratchet.canary_deployer.subprocess_command import Command, run
from ratchet.contract.state import PolicyVersion
from ratchet.service.files import write_whole

log = structlog.get_logger()

MOST_HELDOUT_BYTES = 64 * 1024 * 1024
"""Of the held-out command's output: some hundred thousand tasks."""
MOST_JUDGE_BYTES = 16 * 1024 * 1024
"""Of the evaluator's output."""


@dataclass(frozen=True, slots=True)
class HeldoutPlan:
    """What to run, and where to cache its results."""

    command: str
    tasks: int
    seed: int
    gateway_url: str
    deadline_s: float
    cache: Path
    gateway_api_key: str | None = field(default=None, repr=False)
    """Of a gateway that asks for one; the command gets it in its environment."""


class SubprocessHeldout:
    """Runs the held-out command once per policy, which `RATCHET_POLICY` names."""

    def __init__(self, plan: HeldoutPlan) -> None:
        self._plan = plan
        self.tasks = plan.tasks

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        """Run the command to its end or to the deadline.

        Caches a complete run: the candidate of today is the stable policy of tomorrow's comparison.
        """
        plan = self._plan
        key = plan.gateway_api_key
        environment = {
            **({"RATCHET_GATEWAY_API_KEY": key, "RATCHET_CLIENT_API_KEY": key} if key else {}),
            "RATCHET_GATEWAY_URL": plan.gateway_url,
            "RATCHET_POLICY": f"{policy.role}@{policy.version}",
            "RATCHET_HELDOUT_TASKS": str(plan.tasks),
            "RATCHET_HELDOUT_SEED": str(plan.seed),
        }
        ended = await run(Command(plan.command, plan.deadline_s, MOST_HELDOUT_BYTES), environment)
        played = read_results(ended.lines)
        if ended.problem is None and played.scores:
            await asyncio.to_thread(_write_cache, self._cache_path(policy), played)
        return HeldoutRun(played, ended.seconds, ended.problem)

    async def play_or_recall(self, policy: PolicyVersion) -> HeldoutRun:
        """The cached results of this policy, seed, number and command; else a run."""
        known = await asyncio.to_thread(_read_cache, self._cache_path(policy))
        if known is not None:
            return HeldoutRun(known, 0.0, cached=True)
        return await self.play(policy)

    def _cache_path(self, policy: PolicyVersion) -> Path:
        parts = (policy.digest, self._plan.seed, self._plan.tasks, self._plan.command)
        return self._plan.cache / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"


@dataclass(frozen=True, slots=True)
class SubprocessJudge:
    """Runs the role's evaluator once for all answers of both policies; it cannot see which policy gave an answer."""

    line: str
    deadline_s: float

    async def judge(self, role: str, answers: Sequence[JsonObject]) -> HeldoutRun:
        """The evaluator's judgements of `answers`: one JSON line each goes in, one result each comes out."""
        lines = b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers)
        ended = await run(Command(self.line, self.deadline_s, MOST_JUDGE_BYTES), {"RATCHET_ROLE": role}, lines)
        return HeldoutRun(read_results(ended.lines), ended.seconds, ended.problem)


def _read_cache(path: Path) -> Played | None:
    """A cache entry; None for one that is missing or cannot be read, which costs a run."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Played)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("held-out cache entry ignored", path=str(path), reason=str(error))
        return None


def _write_cache(path: Path, played: Played) -> None:
    """Complete or not at all. A full disk costs the cache, not the gate."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(played), durable=False)
    except OSError as error:
        log.warning("held-out results not cached", path=str(path), reason=str(error))
