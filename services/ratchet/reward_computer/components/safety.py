"""Was it safe? As filters around its calls met it, else as its agent's host labelled it (`labels.scores.safety`)."""

from __future__ import annotations

from ratchet.core.contract.reward import FLAG
from ratchet.reward_computer.components.base import TRUST_IN_MODELS, Assessment, Evidence, labelled


def safety(evidence: Evidence) -> Assessment | None:
    """0 where a filter flagged an answer: what users and tools wrote is not the policy's doing. Else the label; says
    nothing without one."""
    flags = {given.feedback_id: given for given in evidence.feedback if given.kind == FLAG and given.value == "answer"}
    if not flags:
        return labelled(evidence, "safety")
    words = sorted({f"{flag.rater}: {flag.reasoning}" for flag in flags.values()})
    return Assessment(0.0, TRUST_IN_MODELS, "; ".join(words), raw_data={"feedback_ids": sorted(flags)})
