"""What does a model that judges say? Its newest score; it was asked beside the rewards, which never wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.contract import Feedback
from ratchet.reward_computer.components.base import TRUST_IN_MODELS, Assessment, Evidence, judged_by


def judge(evidence: Evidence) -> Assessment | None:
    """Says nothing before the role's judge has answered; judgements of other judges, or by other rubrics, do not count.

    Whether it has weight is up to the reward function, which knows how far people agree with this judge.
    """
    return None if evidence.judge is None else assessed(evidence.feedback, evidence.judge)


def assessed(feedback: Sequence[Feedback], digest: str) -> Assessment | None:
    """The newest judgement of a judge among the feedback on one trajectory."""
    judged = judged_by(feedback, digest)
    if judged is None:
        return None
    by, rubric = judged.by, {"rubric": judged.by.rubric_digest} if judged.by.rubric_digest else {}
    return Assessment(
        judged.score,
        TRUST_IN_MODELS,
        judged.words or f"judged by {by.model}",
        raw_data={"model": by.model, "feedback_id": judged.feedback_id},
        digests={"judge": by.digest, **rubric, "judge_model": by.model},
    )
