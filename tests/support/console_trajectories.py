"""Trajectories and opinions on them, as the console's pages show them in tests and in the documentation's pictures."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from ratchet.core.contract.http.console import (
    AgreementOut,
    AppliedOut,
    AppliedPartOut,
    CallOut,
    JudgementOut,
    MessageOut,
    PairOut,
    PairsOut,
    QueueOut,
    RaterOut,
    ReasonOut,
    RunPartOut,
    TokenOut,
    TokensOut,
    ToolCallOut,
    TrajectoriesOut,
    TrajectoryBrief,
    TrajectoryOut,
)
from ratchet.core.contract.reward import Feedback, Reward, RewardComponent, RewardFunction, RewardMetadata

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m \u202eevil\u202c \x00"
"""Markup, escapes of terminals, a change of direction, a NUL."""
LONG = "Lorem ipsum dolor sit amet. " * 200
IDS = [f"019a3c5e-7d10-7a4{n:x}-8c2e-5b1f0d9e{n:04x}" for n in range(16)]
TASKS = ["refund of order 4471", "change of address", "missing parcel", "invoice twice", "password", "size exchange"]
REWARDS = {"success": 0.92, "partial": 0.5, "failure": 0.16, None: 0.62}
OUTCOMES = ["success", "success", "failure", "partial", None]


def trajectories_scene(now: datetime) -> dict[str, Any]:
    """By `METHOD path`: the answers."""
    briefs = [brief(n, now) for n in range(12)]
    scene: dict[str, Any] = {
        "GET /v1/trajectories": listing(briefs, "older"),
        "POST /gateway/v1/feedback": {"feedback_id": "019a3c5e-0000-7a40-8c2e-5b1f0d9e0000", "trajectory_id": IDS[1]},
        "GET /v1/annotation/queue": QueueOut(trajectories=briefs[1:4], remaining=41),
        "GET /v1/annotation/pair": PairsOut(pair=pair(), why=None),
        "GET /v1/annotation/agreement": agreement(),
        "POST /v1/annotation/judgements": JudgementOut(preference_id="019a3c5e-0000-7a40-8c2e-5b1f0d9e0001"),
        "GET /v1/calls/turn-2/tokens": tokens("turn-2"),
        "GET /v1/calls/turn-4/tokens": tokens("turn-4"),
        "GET /v1/calls/turn-4/applied": applied("turn-4"),
    }
    for n, one in enumerate(briefs):
        scene[f"GET /v1/trajectories/{one.trajectory_id}"] = trajectory(one, now)
        scene[f"GET /v1/trajectories/{IDS[n]}/messages/1"] = whole_message
    return scene


def whole_message(_: object) -> Response:
    """The whole text of the customer's message."""
    return Response(HOSTILE + LONG, media_type="text/plain")


def listing(briefs: list[TrajectoryBrief], after: str | None) -> TrajectoriesOut:
    """A page of the list."""
    return TrajectoriesOut(trajectories=briefs, next=after, searched_since=None)


def brief(n: int, now: datetime) -> TrajectoryBrief:
    """The trajectory `n`; the first one is open."""
    outcome = None if n == 0 else OUTCOMES[n % len(OUTCOMES)]
    began = now - timedelta(minutes=7 * n + 1)
    return TrajectoryBrief(
        trajectory_id=IDS[n],
        role="triage" if n % 4 == 3 else "support",
        state="open" if n == 0 else "ended",
        agent_id=f"desk-{1 + n % 3}",
        name=f"nightly refunds {n}" if n % 3 == 2 else None,
        question="Where is my parcel?" if n % 3 == 0 else "It came broken: please refund me.",
        task_id=TASKS[n % len(TASKS)],
        source=None if n == 0 else "client",
        policy="triage@2" if n % 4 == 3 else "support@7" if n % 3 == 1 else "support@6",
        arm="canary" if n % 4 != 3 and n % 3 == 1 else "stable",
        model=None,
        turns=None if n == 0 else 4 + n % 5,
        calls=2 + n % 5,
        answers=2 + n % 5 - (n in (1, 5)),
        failed_calls=1 if n in (1, 5) else 0,
        outcome=outcome,
        reward=None if n == 0 else round(REWARDS[outcome] + 0.04 * math.sin(5 * (n - 1)), 3),
        revision=None if n == 0 else n % 2,
        thumbs=(0, 1, -1, 0, 2)[n % 5],
        started_at=began,
        ended_at=None if n == 0 else began + timedelta(seconds=24),
        last_call_at=began + timedelta(seconds=20),
        latency_ms=810.0 + 93 * n,
    )


def trajectory(one: TrajectoryBrief, now: datetime) -> TrajectoryOut:
    """A conversation about a refund, with a tool, a hostile customer, and one call that teaches nothing."""
    return TrajectoryOut(
        brief=one,
        task={"instructions": "Answer customers of the shop.", "task_id": one.task_id},
        outcome=None if one.outcome is None else {"status": one.outcome, "verified_by": "shop"},
        error=None,
        messages=messages(),
        messages_total=6,
        unreadable=None,
        calls=[call(2, now), call(4, now), call(5, now)],
        calls_total=3,
        rewards=[] if one.reward is None else [reward(one, 0, now), reward(one, 1, now)],
        feedback=feedback(one, now),
        run=[
            RunPartOut(depth=0, trajectory_id=IDS[1], role="support", agent_id="desk-2", calls=3, outcome="success"),
            RunPartOut(depth=1, trajectory_id=IDS[3], role="triage", agent_id="sorter", calls=2, outcome="success"),
        ],
        reasons=[
            ReasonOut(
                reason="greedy",
                calls=1,
                meaning="The call asked for temperature 0: it drew nothing, so there is nothing to weigh.",
                remedy="Set a temperature above 0 where a run is to teach.",
            )
        ],
    )


def messages() -> list[MessageOut]:
    """System, customer, a call of a tool, its answer, the answer, thanks."""
    order = {"order": 4471, "state": "delivered", "lines": [{"article": "lamp", "price": 39.9}]}
    asked = json.dumps({"order": 4471, "with_lines": True})
    return [
        _message(0, "system", "You are the clerk of a small shop. Be brief; refund what is defective."),
        _message(1, "user", HOSTILE + " My lamp from order 4471 arrived broken. " + LONG[:700], letters=5_700),
        MessageOut(
            index=2,
            role="assistant",
            text="",
            letters=0,
            tool_calls=[ToolCallOut(id="call-1", name="find_order", arguments=asked, letters=len(asked))],
            tool_call_id=None,
            turn_id="turn-2",
        ),
        _message(3, "tool", json.dumps(order), answers="call-1"),
        _message(4, "assistant", "I am sorry about the lamp. I have refunded 39.90 for order 4471.", turn="turn-4"),
        _message(5, "user", "Thank you!"),
    ]


def _message(
    index: int, role: str, text: str, *, turn: str | None = None, answers: str | None = None, letters: int | None = None
) -> MessageOut:
    return MessageOut(
        index=index,
        role=role,
        text=text,
        letters=letters or len(text),
        tool_calls=[],
        tool_call_id=answers,
        turn_id=turn,
    )


def call(index: int, now: datetime) -> CallOut:
    """The call that made message `index`; the fifth one failed."""
    failed = index == 5
    return CallOut(
        turn_id=f"turn-{index}",
        index=index // 2 - 1,
        at=now - timedelta(minutes=8),
        policy="support@7",
        arm="canary",
        model="qwen2.5-0.5b",
        engine="local",
        latency_ms=412.0 + 100 * index,
        first_token_ms=61.0,
        prompt_tokens=311 + 40 * index,
        completion_tokens=None if failed else 14,
        cost_usd=None if failed else 0.00031,
        finish_reason=None if failed else "stop" if index == 4 else "tool_calls",
        error="the engine took longer than 30 s" if failed else None,
        has_tokens=not failed,
        applied_by="gateway",
        is_changed=index == 4,
        learns=index == 4,
        why_not=None if index == 4 else "The call asked for temperature 0.",
        remedy=None if index == 4 else "Set a temperature above 0.",
    )


def applied(turn: str) -> AppliedOut:
    """Longer instructions, whose end is hostile, and a tool that is hidden."""
    sent = "You are the clerk of a small shop.\nBe brief; refund what is defective."
    got = f"You are the clerk of a small shop.\nBe friendly and brief; refund what is defective.\n{HOSTILE}"
    parts = [
        AppliedPartOut(name="instructions", sent=sent, got=got),
        AppliedPartOut(name="tool delete_order", sent='{\n  "name": "delete_order"\n}', got=None),
    ]
    return AppliedOut(turn_id=turn, role="support", version=7, parts=parts, is_cut=False)


def tokens(turn: str) -> TokensOut:
    """Tokens of all likelihoods, the last one without a loss."""
    words = [
        "I",
        " am",
        " sorry",
        " about",
        " the",
        " lamp",
        ".",
        " I",
        " have",
        " refunded",
        " 39",
        ".90",
        "\n",
        "<|end|>",
    ]
    logprobs = [-0.02, -0.01, -0.4, -0.9, -0.05, -2.9, -0.03, -0.3, -1.2, -4.1, -0.2, -0.08, -0.6, -0.01]
    drawn = [
        TokenOut(text=text, id=300 + n, logprob=logprob, learns=n < 13)
        for n, (text, logprob) in enumerate(zip(words, logprobs, strict=True))
    ]
    return TokensOut(turn_id=turn, tokens=drawn, offset=0, total=len(drawn), decoded=True, note=None)


def reward(one: TrajectoryBrief, revision: int, now: datetime) -> Reward:
    """The first reward, and the one after a person's thumb."""
    parts = {
        "task_completion": RewardComponent(
            score=1.0, weight=0.6, source="outcome", reasoning="The shop confirmed the refund."
        ),
        "efficiency": RewardComponent(score=0.6, weight=0.2, source="environment", reasoning="3 calls, 2 are usual."),
        "user_feedback": RewardComponent(
            score=1.0 if revision else 0.5,
            weight=0.2,
            source="human",
            applicable=revision > 0,
            reasoning="One thumb up." if revision else None,
        ),
    }
    return Reward(
        reward_id=f"019a3c5e-0000-7a40-8c2e-5b1f0d9e1{revision:03x}",
        trajectory_id=one.trajectory_id,
        session_id=one.trajectory_id,
        timestamp=now - timedelta(minutes=6 - revision),
        reward_components=parts,
        total_reward=(one.reward or 0.0) - (0.0 if revision else 0.02),
        reward_type="trajectory",
        metadata=RewardMetadata(evaluator="reward_computer", evaluation_method="hybrid"),
        role=one.role,
        revision=revision,
        reward_function=RewardFunction(name="standard", version="2"),
    )


def feedback(one: TrajectoryBrief, now: datetime) -> list[Feedback]:
    """A customer's thumb, a colleague's comment."""
    members = {"trajectory_id": one.trajectory_id, "role": one.role}
    return [
        Feedback(
            feedback_id="019a3c5e-0000-7a40-8c2e-5b1f0d9e2000",
            kind="thumbs",
            value=True,
            at=now - timedelta(minutes=5),
            user_ref="c29tZWJvZHk",
            source="chat-widget",
            **members,
        ),
        Feedback(
            feedback_id="019a3c5e-0000-7a40-8c2e-5b1f0d9e2001",
            kind="comment",
            value="It should have asked for a picture of the lamp first.",
            at=now - timedelta(minutes=4),
            rater="reviewer-2",
            source="console",
            key_id="k9",
            **members,
        ),
    ]


def pair() -> PairOut:
    """Two answers to one question."""
    return PairOut(
        pair_id="pair-1",
        role="support",
        task_id="refund of order 4471",
        question=[_message(0, "user", "My lamp from order 4471 arrived broken. What now?")],
        left=[_message(1, "assistant", "I have refunded 39.90. Keep the lamp, or throw it away.")],
        right=[_message(1, "assistant", "Please send the lamp back first; a refund follows within 14 days.")],
        remaining=18,
        digest="d" * 64,
    )


def agreement() -> AgreementOut:
    """Three raters, of whom one judges against the others."""
    return AgreementOut(
        role="support",
        questions=64,
        alpha=0.71,
        raters=[
            RaterOut(rater="ada", shared=52, disagreed=4, low=0.03, high=0.18, is_outlier=False, standing="counts"),
            RaterOut(
                rater="reviewer-2", shared=47, disagreed=5, low=0.05, high=0.22, is_outlier=False, standing="counts"
            ),
            RaterOut(
                rater="reviewer-3",
                shared=31,
                disagreed=17,
                low=0.38,
                high=0.71,
                is_outlier=True,
                standing="quarantined",
            ),
        ],
    )
