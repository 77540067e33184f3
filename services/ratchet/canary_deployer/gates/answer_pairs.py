"""Answers of candidate and stable to the same prompts, and what the role's evaluator says of them.

It sees every answer under an id that names no policy, in an order that follows from these ids. A missing answer or
judgement counts with the value that is worst for the candidate: 0 for the candidate, 1 for stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.bus.message import JsonObject, named_id
from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.gates.base import Judge, LoggedPrompt
from ratchet.core.contract.state import PolicyVersion


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
class JudgedPairs:
    """What the evaluator says: by pair, how much better the candidate's answer is."""

    differences: Sequence[float] = ()
    evidence: JsonObject = field(default_factory=dict[str, object])
    unjudged: int = 0
    """Answers of which the evaluator says nothing: with them a low difference may be its own fault."""
    problem: str | None = None
    """Why nothing can be compared."""


def pair_of(
    prompt: LoggedPrompt,
    candidate: tuple[PolicyVersion, JsonObject | None],
    stable: tuple[PolicyVersion, JsonObject | None],
) -> Pair:
    """Both policies with their answers to a prompt."""
    return Pair(
        candidate_id=named_id("replay", prompt.turn_id, candidate[0].digest),
        stable_id=named_id("replay", prompt.turn_id, stable[0].digest),
        prompt={"messages": prompt.messages, "tools": prompt.tools},
        candidate=candidate[1],
        stable=stable[1],
    )


async def judge_pairs(judge: Judge, role: str, pairs: Sequence[Pair]) -> JudgedPairs:
    """The evaluator judges all answers at once, in the order of their ids; prompts pair the scores."""
    evidence: JsonObject = {
        "candidate_unanswered": sum(pair.candidate is None for pair in pairs),
        "stable_unanswered": sum(pair.stable is None for pair in pairs),
    }
    if all(pair.stable is None for pair in pairs):
        return JudgedPairs(evidence=evidence, problem="stable answered no prompt")
    questions = sorted(
        (question for pair in pairs for question in pair.questions), key=lambda question: str(question["task"])
    )
    run = await judge(role, questions)
    scores = run.played.scores
    unjudged = len(questions) - len(scores)
    evidence |= {"unjudged": unjudged, "malformed_lines": run.played.malformed}
    problem = run.problem or _misjudged(run.played, {str(question["task"]) for question in questions})
    if problem is not None:
        return JudgedPairs(evidence=evidence, problem=f"the evaluator's judgement is no use: {problem}")
    differences = [scores.get(pair.candidate_id, 0.0) - scores.get(pair.stable_id, 1.0) for pair in pairs]
    return JudgedPairs(differences, evidence, unjudged)


def _misjudged(played: Played, tasks: set[str]) -> str | None:
    if played.scores.keys() - tasks:
        return "it judged answers that it was not given"
    if played.tries > len(played.scores):
        return "it judged an answer more than once"
    return None if played.scores else "it judged no answer"
