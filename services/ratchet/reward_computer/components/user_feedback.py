"""What did people say? Thumbs 1 or 0, stars / 5, an evaluated outcome, a correction .2, giving up 0; not silence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ratchet.core.contract import Feedback
from ratchet.reward_computer.components.base import Assessment, Evidence

_DOUBT = 0.2
"""Chance that one rater misleads; raters are taken as independent."""


def user_feedback(evidence: Evidence) -> Assessment | None:
    """The newest opinion of every rater counts, raters count alike. Words and metrics say nothing here."""
    return assessed(evidence.feedback)


def assessed(feedback: Sequence[Feedback]) -> Assessment | None:
    """What people said of one trajectory."""
    scored = scoring(feedback)
    newest: dict[str, Feedback] = {}
    for opinion in sorted(scored, key=lambda opinion: (opinion.at, opinion.feedback_id)):
        # An opinion without a name is the end user's.
        newest[opinion.rater or opinion.user_ref or "the end user"] = opinion
    opinions = list(newest.values())
    if not opinions:
        return None
    scores = [opinion.score or 0.0 for opinion in opinions]
    kinds = ", ".join(opinion.kind for opinion in opinions)
    return Assessment(
        sum(scores) / len(scores),
        1.0 - _DOUBT ** len(opinions),
        f"{len(opinions)} {'rater' if len(opinions) == 1 else 'raters'}: {kinds}",
        "human",
        {"scores": scores, "feedback_ids": sorted(feedback.feedback_id for feedback in scored)},
    )


def scoring(feedback: Iterable[Feedback]) -> list[Feedback]:
    """The feedback that has a score, each id once."""
    return [
        opinion
        for opinion in {opinion.feedback_id: opinion for opinion in feedback}.values()
        if opinion.score is not None
    ]
