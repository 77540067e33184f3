"""The console over HTTP: what its pages show beside the answers of coordinator, deployer and gateway.

The console passes requests below `/coordinator/v1`, `/deployer/v1` and `/gateway/v1` on, with the caller's own key.
These are the answers that it makes itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.http.rollouts import DifferenceOut
from ratchet.core.contract.reward import Feedback, Reward
from ratchet.core.contract.values import ROLE_FORM, listed

# The caller


class SessionOut(Answer, frozen=True, kw_only=True):
    """Who the console's user is, and what the key allows."""

    key_id: str | None
    """Null: the installation asks for no keys."""
    name: str
    view: bool
    annotate: bool
    train: bool
    operate: bool
    infer: bool
    """Call policies of some role."""
    scopes: list[str]
    """Those of the key; `admin` where the installation asks for no keys."""


# The loop


class MinuteOut(Answer, frozen=True, kw_only=True):
    """What was stored in one minute."""

    at: Instant
    """The minute's beginning."""
    calls: int
    failed_calls: int
    trajectories: int
    rewards: int
    mean_reward: float | None
    """Null: no reward for which something was known."""


class ConsumerOut(Answer, frozen=True, kw_only=True):
    """A durable consumer's distance to the end of its stream."""

    name: str
    lag: int
    """Messages that it has not been given."""
    unacknowledged: int
    redelivered: int


class StreamOut(Answer, frozen=True, kw_only=True):
    """A stream of the broker."""

    name: str
    messages: int
    bytes: int
    consumers: list[ConsumerOut]


class LedgerOut(Answer, frozen=True, kw_only=True):
    """The fate of a stream's messages at one consumer; it balances when `missing` and `absent` are 0."""

    stream: str
    consumer: str
    watermark: int
    stored: int
    dead: int
    duplicate: int
    erased: int
    lost: int
    """Gone for good: neither the stream nor ClickHouse has them."""
    missing: int
    """Settled without an entry in the ledger."""
    absent: int
    """Stored by the ledger, without a row."""


class ServiceOut(Answer, frozen=True, kw_only=True):
    """A service, as its health port answers."""

    name: str
    state: Annotated[str, listed("ready", "not ready", "away", "unknown", "starts when needed")]
    """unknown: the console has no address of it."""
    reason: str | None
    """Why it is not ready."""
    notes: dict[str, str]
    """Faults that do not keep it from its work."""


class LoopRoleOut(Answer, frozen=True, kw_only=True):
    """One role's place in the loop."""

    role: str
    stable: str | None
    """Name of the policy that serves."""
    canary: str | None
    weight: float | None
    """The canary's share of new trajectories."""
    rollout: str | None
    """State of the newest rollout."""
    active_jobs: int
    since_last_training: int | None
    threshold: int | None
    """New rewarded trajectories that start a training; null: by hand."""


class AttentionOut(Answer, frozen=True, kw_only=True):
    """Something that a person has to look at now."""

    severity: Annotated[str, listed("act", "warning")]
    """act: nothing goes on without a person. warning: something is wrong or late."""
    kind: Annotated[
        str,
        listed(
            "approval",
            "held",
            "paused",
            "rollout_fault",
            "late",
            "candidate",
            "service",
            "ledger",
            "lag",
            "job",
            "dead_letters",
            "disk",
            "alert",
        ),
    ]
    """candidate: one was refused, or taken back, in the last day. alert: one that a service raised in the last day, and
    that holds. The others are what they are called."""
    title: str
    detail: str
    role: str | None
    subject: str | None
    """What it is about: the id of a job or rollout, the name of a service or stream."""
    since: Instant | None


class LoopOut(Answer, frozen=True, kw_only=True):
    """The whole loop at a glance."""

    at: Instant
    minutes: list[MinuteOut]
    """The last 60, oldest first."""
    open_trajectories: int | None
    """With a call in the last ten minutes and no end."""
    streams: list[StreamOut]
    ledger: list[LedgerOut]
    services: list[ServiceOut]
    roles: list[LoopRoleOut]
    jobs: dict[str, int]
    """By state."""
    attention: list[AttentionOut]
    """Most urgent first."""
    unread: dict[str, str]
    """Parts that could not be read, and why: `clickhouse`, `nats`, `coordinator`, `deployer`, `disk`. What was last
    read of them is shown for a minute, then nothing."""


class HeldAlertOut(Answer, frozen=True, kw_only=True):
    """An alert that holds."""

    key: str
    severity: str
    summary: str
    source: str
    role: str | None
    at: Instant
    sent_to: list[str]
    """The receivers that know of it."""


class SentOut(Answer, frozen=True, kw_only=True):
    """A notification that a receiver took, or that was given up."""

    at: Instant
    title: str
    alerts: int
    attempts: int
    error: str | None
    """Why it was given up; null: it was taken."""


class ReceiverOut(Answer, frozen=True, kw_only=True):
    """A receiver of alerts, and what was sent to it."""

    name: str
    kind: str
    """`webhook`, or the scheme of its URL; the URL is a secret."""
    severity: str
    """The least that it gets."""
    roles: list[str]
    """Empty: the alerts of all roles, and of none."""
    state: Annotated[str, listed("ready", "failing", "quiet", "away")]
    """failing: it did not take the last attempt; quiet: its quiet hours hold back what is not critical; away: no
    notifier has looked after it for a minute."""
    reason: str | None
    """Why it did not take the last attempt."""
    sent: list[SentOut]
    """Newest first, at most 20."""


class AlertsOut(Answer, frozen=True, kw_only=True):
    """The alerts that hold, and what was sent to whom."""

    alerts: list[HeldAlertOut]
    """The most severe first."""
    receivers: list[ReceiverOut]


class HintOut(Answer, frozen=True, kw_only=True):
    """A server-sent event `hint`: something changed, and pages that show it ask again."""

    kind: Annotated[str, listed("job", "rollout", "alert", "trajectory", "reward", "feedback")]
    role: str | None
    subject: str | None
    """Id of the job, rollout or trajectory; an alert's key. None where one hint stands for several."""
    at: Instant
    text: str
    """One line."""
    count: int
    """How many changes it stands for."""


class WatchedOut(Answer, frozen=True, kw_only=True):
    """A number that every reward of a role has, watched for a change of its level."""

    role: str
    function: str
    """The reward function's name and version."""
    metric: str
    """`reward`, `length`, `calls`, or a component: its score less the reward that the others give."""
    trajectories: int
    """How many are compared with one another now."""
    mean: float | None
    """Of these."""
    evidence: float
    """Of a change; from 1 on it is an alert."""
    alert: str | None
    """The change that holds; None while the level is the usual one."""
    since: Instant | None
    """When it was seen."""


class DriftOut(Answer, frozen=True, kw_only=True):
    """What is watched in rewards."""

    metrics: list[WatchedOut]


# Trajectories


class TrajectoryBrief(Answer, frozen=True, kw_only=True):
    """A trajectory in one line."""

    trajectory_id: str
    role: str
    state: Annotated[str, listed("open", "ended")]
    """open: it has calls, and no end is stored."""
    agent_id: str
    name: str | None
    """What the agent calls it, where it names it."""
    question: str | None
    """The beginning of the first message of a user."""
    task_id: str | None
    source: str | None
    policy: str | None
    """`<role>@<version>` of its calls; `mixed` for several."""
    model: str | None
    """As the servers that answered name it; several with commas."""
    arm: str | None
    turns: int | None
    """Turns that its agent reported, or that were assembled; null while it is open."""
    calls: int
    """Those that the gateway recorded under its id: the further conversations of a run share them."""
    failed_calls: int
    answers: int
    """Calls that were answered."""
    outcome: str | None
    reward: float | None
    """Null: none yet, or no component of it applies."""
    revision: int | None
    thumbs: int
    """Thumbs up less thumbs down of people: each person's newest counts."""
    started_at: Instant
    ended_at: Instant | None
    last_call_at: Instant | None
    latency_ms: float | None
    """Of its calls together."""


class TrajectoriesOut(Answer, frozen=True, kw_only=True):
    """A page of trajectories, newest first."""

    trajectories: list[TrajectoryBrief]
    next: str | None
    """The parameter `after` of the next page; null: this is the last one."""
    searched_since: Instant | None
    """Texts of trajectories before this instant were not read, and `next` goes on there; null: nothing was left out."""


class ToolCallOut(Answer, frozen=True, kw_only=True):
    """A call of a tool in an answer."""

    id: str | None
    name: str
    arguments: str
    """As the model wrote them; at most 20,000 letters."""
    letters: int


class MessageOut(Answer, frozen=True, kw_only=True):
    """One message of the conversation."""

    index: int
    role: str
    text: str
    """At most 20,000 letters of it."""
    letters: int
    """Of the whole text; where `text` is shorter, `GET .../messages/{index}` has all of it."""
    tool_calls: list[ToolCallOut]
    """At most 100."""
    tool_call_id: str | None
    """Of the call that this message answers."""
    turn_id: str | None
    """Of the call that this message is the answer of."""


class CallOut(Answer, frozen=True, kw_only=True):
    """One model call."""

    turn_id: str
    index: int
    at: Instant
    policy: str
    arm: str
    model: str | None
    engine: str
    latency_ms: float | None
    first_token_ms: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    finish_reason: str | None
    error: str | None
    has_tokens: bool
    """Whether `GET /v1/calls/{turn_id}/tokens` has something to show."""
    applied_by: str | None
    """What wrote the policy's bundle into the request: gateway, agent or none; null where the policy is no bundle."""
    is_changed: bool
    """Whether `GET /v1/calls/{turn_id}/applied` has something to show."""
    learns: bool
    """Whether policy gradients may learn from it."""
    why_not: str | None
    remedy: str | None
    """What to change."""


class ReasonOut(Answer, frozen=True, kw_only=True):
    """The calls that one reason keeps from policy gradients."""

    reason: str
    calls: int
    meaning: str
    remedy: str


class RunPartOut(Answer, frozen=True, kw_only=True):
    """A trajectory within the tree of its run."""

    depth: int
    trajectory_id: str
    role: str
    agent_id: str
    calls: int
    outcome: str | None


class TrajectoryOut(Answer, frozen=True, kw_only=True):
    """A trajectory with its conversation, its rewards and what people think of it."""

    brief: TrajectoryBrief
    task: JsonObject | None
    """The task's context, as the agent reported it."""
    outcome: JsonObject | None
    error: str | None
    messages: list[MessageOut]
    """At most 500, from the one that the parameter `first_message` names; after a million letters each is shortened to
    1,000."""
    messages_total: int
    unreadable: str | None
    """Why this is no conversation: the messages are then those of the calls, one call after the other."""
    calls: list[CallOut]
    """At most 500, in order."""
    calls_total: int
    rewards: list[Reward]
    """Oldest revision first; at most 50."""
    feedback: list[Feedback]
    """Oldest first; at most 200."""
    run: list[RunPartOut]
    """All trajectories of its run, itself among them, each after its parent; empty when it is the only one."""
    reasons: list[ReasonOut]
    """Why some of its calls teach policy gradients nothing."""


class TokenOut(Answer, frozen=True, kw_only=True):
    """A token that the model drew."""

    text: str
    id: int
    logprob: float | None
    learns: bool
    """Whether it bears a loss."""


class TokensOut(Answer, frozen=True, kw_only=True):
    """Tokens of one call's answer."""

    turn_id: str
    tokens: list[TokenOut]
    """At most 2,000, from `offset` on."""
    offset: int
    total: int
    decoded: bool
    """False: no tokenizer is known, and `text` is empty."""
    note: str | None
    """Why none of them learns."""


class AppliedPartOut(Answer, frozen=True, kw_only=True):
    """A part of a request that the policy's bundle changed; null where it was not there."""

    name: str
    """instructions, examples, tool and its name, or response format."""
    sent: str | None
    """As the agent sent it."""
    got: str | None
    """As the engine got it."""


class AppliedOut(Answer, frozen=True, kw_only=True):
    """What the policy's bundle made of a call's request."""

    turn_id: str
    role: str
    version: int
    """Of the policy."""
    parts: list[AppliedPartOut]
    is_cut: bool
    """Whether a text is longer than the 400,000 letters that are shown of each."""


# People's opinions


class PairOut(Answer, frozen=True, kw_only=True):
    """Two answers to the same question, in an order that says nothing."""

    pair_id: str
    role: str
    task_id: str | None
    question: list[MessageOut]
    left: list[MessageOut]
    right: list[MessageOut]
    remaining: int
    """Pairs that this rater has not judged, this one included."""
    digest: str = ""
    """Of the texts; a judgement that names it is refused where they have changed since."""


class PairsOut(Answer, frozen=True, kw_only=True):
    """The next pair to judge; null when there is none."""

    pair: PairOut | None
    why: str | None
    """Why there is none."""


class JudgementIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's choice between two answers."""

    pair_id: Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
    choice: Literal["left", "right", "neither"]
    """neither: skipped, and not shown to this rater again; nothing is published."""
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    comment: Annotated[str, msgspec.Meta(max_length=4000)] | None = None
    digest: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    """Of the pair as it was shown: 409 where its texts are others now. Absent: whatever they are."""


class JudgementOut(Answer, frozen=True, kw_only=True):
    """The choice was taken."""

    preference_id: str | None
    """Null: nothing was published."""


class PairsFileIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of preferences, or a part of one."""

    role: Annotated[str, msgspec.Meta(pattern=ROLE_FORM)]
    lines: str
    """JSON lines of {prompt, chosen, rejected, metadata}, as `ratchet preferences export` and `ratchet data
    argilla-export` write them."""


class LeftOutLine(Answer, frozen=True, kw_only=True):
    """A line that is no preference."""

    line: int
    """Its number among the lines that came, from 1."""
    reason: str


class PairsFileOut(Answer, frozen=True, kw_only=True):
    """What became of the lines. A preference that stands twice among them counts once."""

    records: int
    """Lines that hold something."""
    added: int
    """New ones."""
    present: int
    """Those that were stored before."""
    left_out: list[LeftOutLine]


class QueueOut(Answer, frozen=True, kw_only=True):
    """Trajectories that this rater has not rated, those that are most worth rating first."""

    trajectories: list[TrajectoryBrief]
    remaining: int
    """Of the newest 500."""


class RaterOut(Answer, frozen=True, kw_only=True):
    """A rater against the majority of the others."""

    rater: str
    shared: int
    disagreed: int
    low: float
    high: float
    """The 95 % interval of the share that it disagrees on."""
    is_outlier: bool
    standing: str
    """Whether trainings learn from its opinions: `counts`, `quarantined`, `released` or `banned`."""


class AgreementOut(Answer, frozen=True, kw_only=True):
    """How far the raters of a role agree."""

    role: str
    questions: int
    """Two answers that at least two raters judged."""
    alpha: float | None
    """Krippendorff's; null: nothing can be compared."""
    raters: list[RaterOut]


# Rollouts


class DecisionPointOut(Answer, frozen=True, kw_only=True):
    """One decision of a rollout, with the evidence of that moment."""

    sequence: int
    at: Instant
    verdict: str
    actor: str
    reason: str
    stage: int
    weight: float
    e_values: dict[str, dict[str, float]]
    """By family, then by metric."""
    differences: dict[str, DifferenceOut]
    counts: dict[str, dict[str, float]]
    """By arm: started, trajectories, failures, calls, ..., as the decision states them."""


class RolloutHistoryOut(Answer, frozen=True, kw_only=True):
    """A rollout's decisions, oldest first."""

    rollout_id: str
    role: str
    from_version: int | None
    to_version: int
    decisions: list[DecisionPointOut]
    """At most 2,000."""


class PastRolloutOut(Answer, frozen=True, kw_only=True):
    """A rollout in one line."""

    rollout_id: str
    role: str
    from_version: int | None
    to_version: int
    verdict: str
    """Of its last decision."""
    reason: str
    actor: str
    decisions: int
    began_at: Instant
    ended_at: Instant


class PastRolloutsOut(Answer, frozen=True, kw_only=True):
    """A role's rollouts, newest first; at most 200."""

    rollouts: list[PastRolloutOut]


class FailuresOut(Answer, frozen=True, kw_only=True):
    """Trajectories of a rollout with the lowest rewards, newest first among equals; at most 50 of each arm."""

    stable: list[TrajectoryBrief]
    canary: list[TrajectoryBrief]


# Training


class RangeOut(Answer, frozen=True, kw_only=True):
    """Where a curve should be."""

    low: float | None
    high: float | None
    meaning: str
    """One sentence: what a value outside means."""


class CurveOut(Answer, frozen=True, kw_only=True):
    """A figure over the train steps."""

    name: str
    meaning: str | None
    good: RangeOut | None
    points: list[tuple[int, float]]
    """Train step and value; at most 1,000."""


class AttemptOut(Answer, frozen=True, kw_only=True):
    """An attempt of a job."""

    number: int
    state: str
    worker: str
    began_at: Instant
    last_at: Instant
    last_step: int
    error: str | None
    gpu_hours: float | None
    peak_memory_gb: float | None


class CurvesOut(Answer, frozen=True, kw_only=True):
    """The curves of a job, and its attempts."""

    training_job_id: str
    attempts: list[AttemptOut]
    curves: list[CurveOut]


class RowOut(Answer, frozen=True, kw_only=True):
    """A row of a snapshot."""

    index: int
    trajectory_id: str | None
    """Null: a row of another kind."""
    task: str | None
    reward: float | None
    group: str | None
    text: str
    """The beginning of what is learnt, at most 300 letters."""
    why: str
    """Why it was taken, in words: its reward beside the filter and the expectation, who preferred it and by how much,
    or its thumbs."""


class CardOut(Answer, frozen=True, kw_only=True):
    """The card that the trainer wrote of a policy, as it lies beside the policy."""

    uri: str
    text: str
    """Its beginning, at most 64 KiB: Markdown."""
    is_whole: bool


class LogOut(Answer, frozen=True, kw_only=True):
    """What a training process printed, as it lies beside the policy that the process made."""

    uri: str
    text: str
    """Its end, 64 KiB of it at most; control characters are escaped, as in `\\x1b`."""
    is_whole: bool


class RowsOut(Answer, frozen=True, kw_only=True):
    """What a job learns from, and what was left out."""

    uri: str
    digest: str
    format: str
    total: int
    offset: int
    rows: list[RowOut]
    """At most 100."""
    conditions: list[str]
    """What every row meets, in words."""
    left_out: dict[str, int]
    """By reason, in words."""
