"""What does a model that judges say? Its newest score; it was asked beside the rewards, which never wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.contract import Feedback
from ratchet.core.contract.reward import JUDGEMENT
from ratchet.reward_computer.components.base import Assessment, Evidence

TRUST = 0.5
"""Confidence in one judge: that of an outcome which nothing has verified."""


def judge(evidence: Evidence) -> Assessment | None:
    """Says nothing before the role's judge has answered; judgements of other judges, or by other rubrics, do not count.

    Whether it has weight is up to the reward function, which knows how far people agree with this judge.
    """
    return None if evidence.judge is None else assessed(evidence.feedback, evidence.judge)


def assessed(feedback: Sequence[Feedback], digest: str) -> Assessment | None:
    """The newest judgement of a judge among the feedback on one trajectory."""
    own = [one for one in feedback if one.kind == JUDGEMENT and one.judge is not None and one.judge.digest == digest]
    if not own:
        return None
    last = max(own, key=lambda opinion: (opinion.at, opinion.feedback_id))
    score, by = last.value, last.judge
    if by is None or isinstance(score, bool | str) or score is None or not 0.0 <= score <= 1.0:
        return None
    return Assessment(
        score,
        TRUST,
        last.reasoning or f"judged by {by.model}",
        raw_data={"model": by.model, "feedback_id": last.feedback_id},
        digests={"judge": by.digest, "rubric": by.rubric_digest, "judge_model": by.model},
    )
