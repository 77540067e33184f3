"""How good is it to a model that learnt from preferences? Its score; it is asked beside the rewards, like a judge."""

from __future__ import annotations

from ratchet.reward_computer.components.base import TRUST_IN_MODELS, Assessment, Evidence, judged_by


def reward_model(evidence: Evidence) -> Assessment | None:
    """Says nothing before the role's reward model has answered, or where it cannot read the conversation."""
    judged = judged_by(evidence.feedback, evidence.reward_model)
    if judged is None:
        return None
    return Assessment(
        judged.score,
        TRUST_IN_MODELS,
        f"scored by {judged.by.model}",
        raw_data={"feedback_id": judged.feedback_id},
        digests={"reward_model": judged.by.digest},
    )
