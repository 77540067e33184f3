"""Gate `shadow_replay`: candidate and stable answer logged prompts once, and the role's evaluator judges both.

It is asked only where little traffic is all that keeps a candidate from starting, and it refuses nothing: a candidate
that passed starts at a higher weight; after every other outcome an operator decides (`gating.timely_decision`). No tool
is called, no answer reaches a user. Both policies are asked by name, so that their answers are in no statistic and no
training.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject, named_id
from ratchet.canary_deployer.domain.gating import REPLAY
from ratchet.canary_deployer.domain.paired import Played, compare
from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates.base import GateTools, LoggedPrompt, LoggedPrompts, ReplayTools
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected, Unavailable

NAME = REPLAY
AT_A_TIME = 4
"""Prompts that are asked at the same time: the engine serves users meanwhile."""


NOT_TRAFFIC = "replay, not traffic"
"""What every record, event and line says of such a comparison."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, and what each policy answered; None where it did not."""

    candidate_id: str
    stable_id: str
    prompt: JsonObject
    """`messages` and `tools`."""
    candidate: JsonObject | None
    stable: JsonObject | None

    @property
    def to_judge(self) -> list[JsonObject]:
        """The answers as the evaluator is given them."""
        answers = ((self.candidate_id, self.candidate), (self.stable_id, self.stable))
        return [{"task": task, **self.prompt, "answer": answer} for task, answer in answers if answer is not None]


def answer_id(turn_id: str, digest: str) -> str:
    """Stands for the answer of a policy to the prompt of a call."""
    return named_id("replay", turn_id, digest)


def to_judge(pairs: Sequence[Pair]) -> list[JsonObject]:
    """All answers, in the order of their ids."""
    return sorted((answer for pair in pairs for answer in pair.to_judge), key=lambda answer: str(answer["task"]))


def misjudged(played: Played, given: Collection[str]) -> str | None:
    """Why judgements cannot be used, None when they can."""
    if played.scores.keys() - set(given):
        return "it judged answers that it was not given"
    if played.tries > len(played.scores):
        return "it judged an answer more than once"
    return None if played.scores else "it judged no answer"


def differences(pairs: Sequence[Pair], scores: Mapping[str, float]) -> list[float]:
    """Candidate minus stable, by prompt."""
    return [scores.get(pair.candidate_id, 0.0) - scores.get(pair.stable_id, 1.0) for pair in pairs]


@dataclass(frozen=True, slots=True)
class ReplayGate:
    """What is missing, in words, is no comparison: the outcome is `not_run`."""

    tools: ReplayTools | None

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Never raises `Unavailable`: a person is asked at once, as without a replay."""
        if self.tools is None:
            return _not_run("no evaluator is configured (RATCHET_CANARY_REPLAY_COMMAND)")
        if stable is None:
            return _not_run("there is no stable policy to compare with")
        try:
            logged = await self.tools.log.prompts(candidate, self.tools.prompts)
        except (Unavailable, Rejected) as error:
            return _not_run(str(error))
        if len(logged.prompts) < self.tools.fewest:
            few = f"{len(logged.prompts)} logged prompts that it has not learned from, {self.tools.fewest} are needed"
            return _not_run(few, {"prompts": len(logged.prompts), "left_out": logged.left_out})
        return await _compared(self.tools, candidate, stable, logged)


def build(tools: GateTools) -> ReplayGate:
    return ReplayGate(tools.replay)


async def _compared(
    tools: ReplayTools, candidate: PolicyVersion, stable: PolicyVersion, logged: LoggedPrompts
) -> GateResult:
    """Both policies on all prompts."""
    evidence: JsonObject = {"prompts": len(logged.prompts), "left_out": logged.left_out}
    started = time.monotonic()
    try:
        async with asyncio.timeout(tools.deadline_s):
            pairs = await _answered(tools, candidate, stable, logged.prompts)
    except TimeoutError:
        return _not_run(f"not all prompts were answered after {tools.deadline_s:g} s", evidence)
    evidence |= _answers(pairs, logged.prompts) | {"seconds": round(time.monotonic() - started, 1)}
    if all(pair.stable is None for pair in pairs):
        return _not_run("stable answered no prompt", evidence)
    given = to_judge(pairs)
    run = await tools.judge.judge(candidate.role, given)
    evidence |= {"unjudged": len(given) - len(run.played.scores), "malformed_lines": run.played.malformed}
    problem = run.problem or misjudged(run.played, {str(answer["task"]) for answer in given})
    if problem is not None:
        return _not_run(f"the evaluator's judgement is no use: {problem}", evidence)
    found = compare(differences(pairs, run.played.scores), tools.confidence, tools.margin)
    outcome = PASSED if found.passed else FAILED
    return GateResult(NAME, outcome, f"{NOT_TRAFFIC}: {found.in_words()}", {**evidence, **found.shown()})


async def _answered(
    tools: ReplayTools, candidate: PolicyVersion, stable: PolicyVersion, prompts: Sequence[LoggedPrompt]
) -> list[Pair]:
    """Every prompt, asked of both policies."""
    room = asyncio.Semaphore(AT_A_TIME)

    async def pair(prompt: LoggedPrompt) -> Pair:
        async with room:
            fresh, usual = await _answer(tools, candidate, prompt), await _answer(tools, stable, prompt)
        return Pair(
            candidate_id=answer_id(prompt.turn_id, candidate.digest),
            stable_id=answer_id(prompt.turn_id, stable.digest),
            prompt={"messages": prompt.messages, "tools": prompt.tools},
            candidate=fresh,
            stable=usual,
        )

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(pair(prompt)) for prompt in prompts]
    return [task.result() for task in asking]


async def _answer(tools: ReplayTools, policy: PolicyVersion, prompt: LoggedPrompt) -> JsonObject | None:
    """One answer; None where there is none, which counts as worst for the candidate."""
    try:
        return await tools.player.complete(policy, prompt)
    except (Rejected, Unavailable):
        return None


def _answers(pairs: Sequence[Pair], prompts: Sequence[LoggedPrompt]) -> JsonObject:
    """What was asked, and who did not answer."""
    turns = "\n".join(sorted(prompt.turn_id for prompt in prompts))
    return {
        "candidate_unanswered": sum(pair.candidate is None for pair in pairs),
        "stable_unanswered": sum(pair.stable is None for pair in pairs),
        "turns_digest": hashlib.sha256(turns.encode()).hexdigest(),
    }


def _not_run(why: str, evidence: JsonObject | None = None) -> GateResult:
    return GateResult(NAME, NOT_RUN, why, evidence or {})
