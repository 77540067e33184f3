"""Shadow replay: what both policies answered to logged prompts, judged by one evaluator and compared in pairs.

The evaluator sees every answer under an id that names no policy, in an order that follows from these ids. What is not
answered or not judged counts with what is worst for the candidate: 0 for the candidate, 1 for stable. A next call is
not a trajectory: that its answers are as good says nothing of where they lead. So a passed replay gives a higher first
weight, and is in no test of traffic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject, named_id
from ratchet.canary_deployer.domain.heldout import Played
from ratchet.canary_deployer.domain.rules import Rules

REPLAY = "shadow_replay"
"""The gate's name."""
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


def first_stage(rules: Rules) -> int:
    """Where traffic begins after a passed replay: at the last stage whose weight is at most the setting's."""
    return max((n for n, stage in enumerate(rules.stages) if stage.weight <= rules.replay_weight), default=0)
