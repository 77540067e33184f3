"""A contract with two versions of one topic, as it would be after a breaking change: feedback.v2 beside feedback.v1.

In v2 the opinion is a `score` from 0 to 1 instead of a `value` whose meaning depends on the kind.
"""

from __future__ import annotations

import copy
import json
from datetime import datetime
from typing import Any, ClassVar

from ratchet.bus.contracts import Contracts, Upgrade
from ratchet.core.contract import DEFAULT_ROLE, MESSAGES, Feedback, Message, role_subject
from tests.support.contract_files import ROOT, SCHEMAS, SUMMARIES

V1, V2 = Feedback.TOPIC, "agent.rl.feedback.v2"
STARS = 5.0


class FeedbackV2(Message, frozen=True, kw_only=True, omit_defaults=True):
    """An opinion on a trajectory, in the second version."""

    TOPIC: ClassVar[str] = V2

    feedback_id: str
    trajectory_id: str
    score: float
    at: datetime
    role: str = DEFAULT_ROLE

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        return self.feedback_id


def schema() -> Any:
    """The schema of the second version."""
    made = copy.deepcopy(SCHEMAS["feedback.v1"])
    kept = {name: made["properties"][name] for name in ("feedback_id", "trajectory_id", "role", "at")}
    score = {"description": "From 0, worst, to 1, best.", "type": "number", "minimum": 0, "maximum": 1}
    return {
        "$schema": made["$schema"],
        "$id": "urn:ratchet:schema:feedback.v2",
        "type": "object",
        "additionalProperties": False,
        "required": ["feedback_id", "trajectory_id", "score", "at"],
        "properties": {**kept, "score": score},
    }


def upgraded(old: Any) -> Any:
    """A body of the second version from one of the first. Raises `KeyError` for a kind without a score."""
    scores = {"thumbs": float, "rating": lambda value: value / STARS}
    kept = {name: old[name] for name in ("feedback_id", "trajectory_id", "role", "at") if name in old}
    return {**kept, "score": scores[old["kind"]](old["value"])}


def contracts() -> Contracts:
    """The contracts of a release that knows both versions and the way from one to the other."""
    document = json.loads((ROOT / "topics.json").read_text())
    subjects = [V2, f"{V2}.<role>"]
    document["topics"][V2] = {**document["topics"][V1], "subjects": subjects, "schema": "feedback.v2"}
    document["streams"]["RL_FEEDBACK"]["subjects"] += [V2, f"{V2}.*"]
    schemas = {**SCHEMAS, **SUMMARIES, "feedback.v2": schema()}
    return Contracts(document, schemas, {**MESSAGES, V2: FeedbackV2}, {V1: Upgrade(V2, upgraded)})
