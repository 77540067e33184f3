"""Rewards of trajectories, feedback on them, and preferences between answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

import msgspec

from ratchet.bus.message import JsonObject, Message, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE, role_subject


class RewardComponent(Value, frozen=True, kw_only=True, omit_defaults=True):
    score: float
    """Raw, before normalisation."""
    weight: float
    source: str
    reasoning: str | None = None
    raw_data: JsonObject | None = None
    applicable: bool = True
    normalized: float | None = None
    parameters: JsonObject | None = None
    """Parameters of the normalisation: method, window size, mean, std, min, max."""


class Normalization(Value, frozen=True, kw_only=True, omit_defaults=True):
    method: str | None = None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None


class RewardMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    evaluator: str
    evaluation_method: str
    confidence: float | None = None


class RewardFunction(Value, frozen=True, kw_only=True):
    name: str
    version: str


class TurnReward(Value, frozen=True, kw_only=True):
    turn_id: int
    reward: float


class Reward(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The reward of one trajectory under one reward function; late feedback makes the next revision."""

    TOPIC: ClassVar[str] = "agent.rl.reward.v1"

    reward_id: str
    trajectory_id: str
    session_id: str
    timestamp: datetime
    reward_components: dict[str, RewardComponent]
    total_reward: float
    reward_type: str
    metadata: RewardMetadata
    normalization: Normalization | None = None
    role: str = DEFAULT_ROLE
    revision: int = 0
    reported_at: datetime | None = None
    """When a stream stored the report that this first reward is computed from: the end, else the trajectory."""
    reward_function: RewardFunction | None = None
    turn_rewards: list[TurnReward] | None = None

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        return self.reward_id


UPDATE = "update"
"""Kind of the feedback that is no opinion: a trajectory was published again with late facts that revise its reward."""


class Feedback(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One opinion about a trajectory."""

    TOPIC: ClassVar[str] = "agent.rl.feedback.v1"

    feedback_id: str
    trajectory_id: str
    kind: str
    """`thumbs`, `rating`, `correction`, `abandoned`, `comment`, `metric` or `update`."""
    at: datetime
    role: str = DEFAULT_ROLE
    value: float | bool | str | None = None
    """thumbs: true/false; rating: 0..5 stars; metric: a number; comment and correction: text."""
    user_ref: str | None = None
    source: str | None = None
    rater: str | None = None
    key_id: str | None = None
    """The API key that it came with."""

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        return self.feedback_id


class Preference(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One answer preferred over another for the same prompt."""

    TOPIC: ClassVar[str] = "agent.rl.preference.v1"

    preference_id: str
    prompt: str | list[JsonObject]
    chosen: str | list[JsonObject]
    rejected: str | list[JsonObject]
    source: str
    """`human`, `teacher`, `heuristic`, `derived` or `rag`."""
    role: str = DEFAULT_ROLE
    rater: str | None = None
    confidence: float | None = None
    domain: str | None = None
    labels: JsonObject | None = None
    tools: list[JsonObject] | None = None
    """The tools that were offered with the prompt, in OpenAI's form."""
    chosen_trajectory_id: str | None = None
    rejected_trajectory_id: str | None = None
    group_key: str | None = None

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        return self.preference_id


def preference_id(identity: Sequence[object]) -> str:
    """The id of a preference from role, source, rater, prompt, chosen and rejected: the same answers of the same rater
    are the same preference."""
    return named_id("preference", msgspec.json.encode(identity, order="sorted").decode())
