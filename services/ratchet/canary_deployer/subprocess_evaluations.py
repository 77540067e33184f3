"""The operator's two commands that evaluate policies: held-out tasks, and judgements of answers to logged prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.paired import read_results
from ratchet.canary_deployer.gates.base import HeldoutRun
from ratchet.canary_deployer.heldout_cache import HeldoutCache
from ratchet.canary_deployer.subprocess_command import Command, run
from ratchet.core.contract.state import PolicyVersion

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
        self._cache = HeldoutCache(plan.cache)
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
            await self._cache.write(played, *self._key(policy))
        return HeldoutRun(played, ended.seconds, ended.problem, refuses=True)

    async def play_or_recall(self, policy: PolicyVersion) -> HeldoutRun:
        """The cached results of this policy, seed, number and command; else a run."""
        known = await self._cache.read(*self._key(policy))
        if known is not None:
            return HeldoutRun(known, 0.0, cached=True)
        return await self.play(policy)

    def _key(self, policy: PolicyVersion) -> tuple[object, ...]:
        return (policy.digest, self._plan.seed, self._plan.tasks, self._plan.command)


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
