"""Rewards of trajectories, feedback on them, and preferences between answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from ratchet.bus.message import JsonObject, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE, RoleMessage
from ratchet.core.contract.traces import Trace
from ratchet.core.contract.values import (
    DOMAINS,
    Amount,
    Count,
    KeyId,
    Ordinal,
    Role,
    Sha256,
    Share,
    UserRef,
    Uuid,
    listed,
)

KINDS = (
    *("thumbs", "rating", "correction", "abandoned", "comment", "metric", "update", "judgement", "flag"),
    *("observation", "error_analysis", "efficiency", "outcome_evaluation", "parent_reward"),
)
"""Kinds of feedback."""
SOURCES = ("human", "teacher", "heuristic", "derived", "rag")
"""Sources that a preference can have."""


class RewardComponent(Value, frozen=True, kw_only=True, omit_defaults=True):
    score: float
    """Raw, before normalisation."""
    weight: Share
    """Its weight; weights need not sum to 1."""
    source: Annotated[str, listed("automated", "human", "linter", "test_results", "benchmark")]
    """Where the score comes from."""
    reasoning: str | None = None
    raw_data: JsonObject | None = None
    """What the score was computed from."""
    applicable: bool = True
    """False when the component says nothing about this trajectory; its weight is then spread over the others."""
    normalized: float | None = None
    """The score after normalisation, for training only."""
    parameters: JsonObject | None = None
    """Parameters of the normalisation: method, window size, mean, std, min, max."""


class Normalization(Value, frozen=True, kw_only=True, omit_defaults=True):
    method: Annotated[str, listed("z-score", "min-max", "none")] | None = None
    mean: float | None = None
    std: Amount | None = None
    """Standard deviation of the window."""
    min: float | None = None
    """Least value of the window."""
    max: float | None = None
    """Greatest value of the window."""


class RewardMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    evaluator: str
    evaluation_method: Annotated[str, listed("automated", "human", "hybrid", "model-based")]
    confidence: Share | None = None
    """0 (guess) to 1 (verified)."""
    digests: dict[str, str] | None = None
    """What computed it, by digest: `function` (weights, components, normalisation), and of the models that a component
    asked, such as `judge` and its `rubric`."""


class RewardFunction(Value, frozen=True, kw_only=True):
    name: str
    version: str


class TurnReward(Value, frozen=True, kw_only=True):
    turn_id: Ordinal
    """`turns[].turn_id` of the trajectory."""
    reward: float


class Effort(Value, frozen=True, kw_only=True):
    """What a trajectory took."""

    model_calls: Count
    """How often the model was asked: parallel tool calls come from one answer."""
    characters: Count
    """Length of the texts that the policy wrote, its reasoning included; arguments of tool calls do not count."""


class Reward(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The reward of one trajectory under one reward function; late feedback makes the next revision."""

    TOPIC: ClassVar[str] = "agent.rl.reward.v1"

    reward_id: Uuid
    """Id of this revision: the same trajectory, function and revision always have the same id."""
    trajectory_id: Uuid
    """The trajectory that is rewarded."""
    session_id: str
    """Session of the trajectory."""
    timestamp: datetime
    """When it was computed."""
    reward_components: dict[str, RewardComponent]
    """By name: task_completion, efficiency, code_quality, user_feedback, safety, accuracy, or any other; none is
    mandatory."""
    total_reward: float
    """The scalar to learn from."""
    reward_type: Annotated[str, listed("dense", "sparse")]
    """`dense`: per turn as well; `sparse`: only at the end."""
    metadata: RewardMetadata
    """Who computed it, and how sure."""
    normalization: Normalization | None = None
    """Normalisation of the reward as a whole; each component has its own `parameters`."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    revision: Count = 0
    """0 for the first reward of a trajectory; late feedback makes 1, 2 ..."""
    reported_at: datetime | None = None
    """When a stream stored the report that this first reward is computed from: the end, else the trajectory."""
    reward_function: RewardFunction | None = None
    """Which function computed it."""
    turn_rewards: list[TurnReward] | None = None
    """Dense rewards; they sum to the total."""
    effort: Effort | None = None
    """What the trajectory took, for those who look whether rewards follow it."""
    recomputed: bool = False
    """Computed anew from history, under a function that was accepted: no trajectory is new."""
    first_scored: list[str] | None = None
    """Of a revision after the first: components that apply, and applied in no revision before it."""
    trace: Trace | None = None
    """The span that the reward belongs below, as its trajectory names it."""

    @property
    def event_id(self) -> str:
        return self.reward_id

    @property
    def traceparent(self) -> str | None:
        return self.trace.traceparent if self.trace else None


CORRECTION, ABANDONED = 0.2, 0.0
"""Scores of a corrected answer, and of a user who gave up."""
UPDATE = "update"
"""Kind of the feedback that is no opinion: a trajectory was published again with late facts that revise its reward."""
JUDGEMENT = "judgement"
"""Kind of the feedback that a model gave: the score of a judge, with its words, or of a reward model."""

FLAG = "flag"
"""Kind of the feedback that a filter around calls gave: what it met."""
PARENT_REWARD = "parent_reward"
"""Kind of the feedback that the reward of its parent is to a trajectory, where its role shares it."""


class JudgeRef(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Which judge it was."""

    digest: Sha256
    """sha256 of model, rubric and the way it was asked; of a reward model's manifest."""
    rubric_digest: Sha256 | None = None
    """sha256 of the rubric; a reward model has none."""
    model: str
    """Who answered, as precisely as its server says: a policy's full name, which ends with its digest, else a model's
    name."""


def _value_of(kind: str, value: JsonObject, *, required: bool = True) -> JsonObject:
    """What feedback of a kind has as its value."""
    then = {"required": ["value"]} if required else {}
    return {
        "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
        "then": {**then, "properties": {"value": value}},
    }


class Feedback(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """One opinion about a trajectory."""

    TOPIC: ClassVar[str] = "agent.rl.feedback.v1"
    RULES: ClassVar[JsonObject] = {
        "allOf": [
            _value_of("thumbs", {"type": "boolean"}),
            _value_of("rating", {"type": "number", "minimum": 0, "maximum": 5}),
            _value_of("metric", {"type": "number"}),
            _value_of("comment", {"type": "string"}),
            _value_of("correction", {"type": "string"}, required=False),
            _value_of("judgement", {"type": "number", "minimum": 0, "maximum": 1}),
            _value_of("flag", {"type": "string", "enum": ["request", "answer", "tool_result"]}),
            _value_of("observation", {"type": "string"}),
            _value_of("error_analysis", {"type": "string"}),
            _value_of("efficiency", {"type": "number", "minimum": 0, "maximum": 1}),
            _value_of("outcome_evaluation", {"type": "number", "minimum": 0, "maximum": 1}),
            _value_of("parent_reward", {"type": "number", "minimum": 0, "maximum": 1}),
        ]
    }

    feedback_id: Uuid
    """Id of this piece of feedback; the same id twice counts once."""
    trajectory_id: Uuid
    """The trajectory it is about."""
    kind: Annotated[str, listed(*KINDS)]
    """`thumbs`, `rating`, `correction`, `abandoned`, `comment`, `metric`, `update`, `judgement`, `flag`,
    `observation`, `error_analysis`, `efficiency`, `outcome_evaluation` or `parent_reward`."""
    at: datetime
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    value: float | bool | str | None = None
    """thumbs: true/false; rating: 0..5 stars; metric: a number; comment and correction: text; judgement: 0..1;
    flag: `request`, `answer` or `tool_result`, whichever the filter met; observation: what was seen;
    error_analysis: what went wrong, and why; efficiency: 0..1, how little it took for what it did;
    outcome_evaluation: 0..1, how much of its goal it reached; parent_reward: 0..1, the parent's total."""
    user_ref: UserRef | None = None
    """Keyed hash of the end user, never the raw id: opting out and unlearning find the user's data by it."""
    source: Annotated[str, Meta(examples=["chat-widget", "console", "import"])] | None = None
    rater: str | None = None
    """Who gave it, when it was not the end user."""
    key_id: KeyId | None = None
    """The API key that it came with."""
    reasoning: str | None = None
    """Of a judgement: the judge's words; of a flag: the filter's."""
    judge: JudgeRef | None = None
    """Of a judgement: who judged."""
    parent_trajectory_id: Uuid | None = None
    """Of a parent's reward: the trajectory that was rewarded."""

    @property
    def event_id(self) -> str:
        return self.feedback_id

    @property
    def score(self) -> float | None:
        """0..1: thumbs 1 or 0, stars / 5, an evaluated outcome as it is, a correction .2, giving up 0; None where it is
        no opinion on the whole."""
        if self.kind == "thumbs":
            return 1.0 if self.value is True else 0.0
        if self.kind == "rating" and isinstance(self.value, int | float):
            return min(1.0, max(0.0, self.value / 5.0))
        if self.kind == "outcome_evaluation" and isinstance(self.value, int | float):
            return min(1.0, max(0.0, float(self.value)))
        return {"correction": CORRECTION, "abandoned": ABANDONED}.get(self.kind)


class Preference(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """One answer preferred over another for the same prompt."""

    TOPIC: ClassVar[str] = "agent.rl.preference.v1"

    preference_id: Uuid
    prompt: str | Annotated[list[JsonObject], Meta(min_length=1)]
    """What both answer: a text or a list of chat messages."""
    chosen: str | Annotated[list[JsonObject], Meta(min_length=1)]
    rejected: str | Annotated[list[JsonObject], Meta(min_length=1)]
    source: Annotated[str, listed(*SOURCES)]
    """`human`, `teacher`, `heuristic`, `derived` or `rag`."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    rater: str | None = None
    """Which person, model or rule preferred."""
    confidence: Share | None = None
    """0 (guess) to 1 (certain)."""
    domain: Annotated[str, Meta(examples=[*DOMAINS])] | None = None
    """What kind of task this is. Open: any domain of your own."""
    labels: JsonObject | None = None
    """Free-form labels of your own."""
    tools: list[JsonObject] | None = None
    """The tools that were offered with the prompt, in OpenAI's form."""
    chosen_trajectory_id: Uuid | None = None
    """The trajectory that the better answer comes from."""
    rejected_trajectory_id: Uuid | None = None
    """The trajectory that the worse answer comes from."""
    group_key: str | None = None
    """The task that both answer, where several tries of it are known."""

    @property
    def event_id(self) -> str:
        return self.preference_id


def preference_id(identity: Sequence[object]) -> str:
    """The id of a preference from role, source, rater, prompt, chosen and rejected: the same answers of the same rater
    are the same preference."""
    return named_id("preference", msgspec.json.encode(identity, order="sorted").decode())
