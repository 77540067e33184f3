"""Gate `shadow_replay`: candidate and stable answer logged prompts once, and the role's evaluator judges both.

The deployer asks it only where little traffic is all that keeps a candidate from starting, and it refuses nothing: a
candidate that passed starts at a higher weight; after every other outcome an operator decides
(`gating.timely_decision`). No tool is called, no answer reaches a user. The gate asks both policies by name, so that
their answers are in no statistic and no training.

The evaluator sees every answer under an id that names no policy, in an order that follows from these ids. A missing
answer or judgement counts with the value that is worst for the candidate: 0 for the candidate, 1 for stable. A next
call is not a trajectory: that its answers are as good says nothing of where they lead. So a passed replay gives a
higher first weight, and is in no test of traffic.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject, named_id
from ratchet.canary_deployer.domain.gating import REPLAY
from ratchet.canary_deployer.domain.paired import Played, compare
from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
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
class Pair:
    """One prompt, and each policy's answer; None where it did not answer."""

    candidate_id: str
    """Stands for the candidate's answer, and names no policy; so does `stable_id` for stable's."""
    stable_id: str
    prompt: JsonObject
    """`messages` and `tools`."""
    candidate: JsonObject | None
    stable: JsonObject | None

    @property
    def questions(self) -> list[JsonObject]:
        """The answers as the evaluator gets them."""
        answers = ((self.candidate_id, self.candidate), (self.stable_id, self.stable))
        return [{"task": task, **self.prompt, "answer": answer} for task, answer in answers if answer is not None]


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
        "candidate_unanswered": sum(pair.candidate is None for pair in pairs),
        "stable_unanswered": sum(pair.stable is None for pair in pairs),
        "turns_digest": hashlib.sha256(turns.encode()).hexdigest(),
        "seconds": round(time.monotonic() - started, 1),
    }
    if all(pair.stable is None for pair in pairs):
        return _not_run("stable answered no prompt", evidence)
    questions = sorted(
        (question for pair in pairs for question in pair.questions), key=lambda question: str(question["task"])
    )
    run = await tools.judge(candidate.role, questions)
    scores = run.played.scores
    evidence |= {"unjudged": len(questions) - len(scores), "malformed_lines": run.played.malformed}
    problem = run.problem or _misjudged(run.played, {str(question["task"]) for question in questions})
    if problem is not None:
        return _not_run(f"the evaluator's judgement is no use: {problem}", evidence)
    differences = [scores.get(pair.candidate_id, 0.0) - scores.get(pair.stable_id, 1.0) for pair in pairs]
    comparison = compare(differences, CONFIDENCE, MARGIN)
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
        return Pair(
            candidate_id=named_id("replay", prompt.turn_id, candidate.digest),
            stable_id=named_id("replay", prompt.turn_id, stable.digest),
            prompt={"messages": prompt.messages, "tools": prompt.tools},
            candidate=fresh,
            stable=usual,
        )

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(prompt)) for prompt in prompts]
    return [task.result() for task in tasks]


def _misjudged(played: Played, tasks: set[str]) -> str | None:
    if played.scores.keys() - tasks:
        return "it judged answers that it was not given"
    if played.tries > len(played.scores):
        return "it judged an answer more than once"
    return None if played.scores else "it judged no answer"


def _not_run(why: str, evidence: JsonObject | None = None) -> GateResult:
    return GateResult(REPLAY, NOT_RUN, why, evidence or {})
