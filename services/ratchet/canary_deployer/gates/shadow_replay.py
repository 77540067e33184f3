"""Gate `shadow_replay`: candidate and stable answer logged prompts once, and the role's evaluator judges both.

The deployer asks it only where little traffic is all that keeps a candidate from starting, and it refuses nothing: a
candidate that passed starts at a higher weight; after every other outcome an operator decides
(`gating.timely_decision`). No tool is called, no answer reaches a user. The gate asks both policies by name, so that
their answers are in no statistic and no training.

`answer_pairs` says how answers are judged. A next call is not a trajectory: that its answers are as good says nothing
of where they lead. So a passed replay gives a higher first weight, and is in no test of traffic.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import REPLAY
from ratchet.canary_deployer.domain.paired import compare
from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates.answer_pairs import Pair, judge_pairs, pair_of
from ratchet.canary_deployer.gates.base import Complete, LoggedPrompt, LoggedPrompts, ReplayTools
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Rejected, Unavailable

NOT_TRAFFIC = "replay, not traffic"
"""Every record, event and line about such a comparison contains these words."""
PROMPTS, FEWEST = 400, 100
"""Logged prompts that both policies answer, once each; with fewer nothing is compared."""
MARGIN, CONFIDENCE = 0.05, 0.95
"""The replay passes when the one-sided lower bound of the paired difference is at least minus the margin: it raises the
share of users that a candidate meets first, so it is stricter than the held-out gate."""
DEADLINE_S = 1800.0
"""For all answers, and as much for all judgements."""
AT_A_TIME = 4
"""Prompts that are asked at the same time: the engine serves users meanwhile."""


@dataclass(frozen=True, slots=True)
class ReplayGate:
    """Compares answers where it can. Where it cannot, its outcome is `not_run`, and the reason says why."""

    tools: ReplayTools | None

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Never raises `Unavailable`: the deployer asks an operator at once, as without a replay."""
        tools = self.tools
        if tools is None:
            return _not_run("no evaluator is configured (RATCHET_CANARY_REPLAY_COMMAND)")
        if stable is None:
            return _not_run("there is no stable policy to compare with")
        try:
            logged = await tools.prompts(candidate, PROMPTS)
        except (Unavailable, Rejected) as error:
            return _not_run(str(error))
        if len(logged.prompts) < FEWEST:
            few = f"{len(logged.prompts)} logged prompts that it has not learned from, {FEWEST} are needed"
            return _not_run(few, {"prompts": len(logged.prompts), "left_out": logged.left_out})
        return await _replay(tools, candidate, stable, logged)


async def _replay(
    tools: ReplayTools, candidate: PolicyVersion, stable: PolicyVersion, logged: LoggedPrompts
) -> GateResult:
    """Both policies answer; the evaluator judges all answers, in the order of their ids; prompts pair the scores."""
    started = time.monotonic()
    turns = "\n".join(sorted(prompt.turn_id for prompt in logged.prompts))
    evidence: JsonObject = {"prompts": len(logged.prompts), "left_out": logged.left_out}
    try:
        async with asyncio.timeout(DEADLINE_S):
            pairs = await _ask_both(tools.complete, candidate, stable, logged.prompts)
    except TimeoutError:
        return _not_run(f"not all prompts were answered after {DEADLINE_S:g} s", evidence)
    evidence |= {
        "turns_digest": hashlib.sha256(turns.encode()).hexdigest(),
        "seconds": round(time.monotonic() - started, 1),
    }
    judged = await judge_pairs(tools.judge, candidate.role, pairs)
    evidence |= judged.evidence
    if judged.problem is not None:
        return _not_run(judged.problem, evidence)
    comparison = compare(judged.differences, CONFIDENCE, MARGIN)
    outcome = PASSED if comparison.passed else FAILED
    return GateResult(REPLAY, outcome, f"{NOT_TRAFFIC}: {comparison.sentence()}", {**evidence, **comparison.figures()})


async def _ask_both(
    complete: Complete, candidate: PolicyVersion, stable: PolicyVersion, prompts: Sequence[LoggedPrompt]
) -> list[Pair]:
    """Asks both policies every prompt. A policy that cannot answer one has None there."""
    room = asyncio.Semaphore(AT_A_TIME)

    async def answer(policy: PolicyVersion, prompt: LoggedPrompt) -> JsonObject | None:
        try:
            return await complete(policy, prompt)
        except (Rejected, Unavailable):
            return None

    async def ask(prompt: LoggedPrompt) -> Pair:
        async with room:
            fresh, usual = await answer(candidate, prompt), await answer(stable, prompt)
        return pair_of(prompt, (candidate, fresh), (stable, usual))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(prompt)) for prompt in prompts]
    return [task.result() for task in tasks]


def _not_run(why: str, evidence: JsonObject | None = None) -> GateResult:
    return GateResult(REPLAY, NOT_RUN, why, evidence or {})
