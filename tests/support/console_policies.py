"""Policies of the console's scene: versions of two roles, one with its lineage down to the people behind it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ratchet.core.contract.http.models import (
    EventPart,
    JobPart,
    LineageOut,
    ModelOut,
    ModelsOut,
    PreferencesPage,
    RaterPart,
    ReplayPromptOut,
    ReplayPromptsOut,
    RewardPart,
    RewardsPart,
    RoleModelsOut,
    SnapshotPart,
    TrajectoriesPage,
    TrajectoryPart,
)
from tests.support.console_bundles import bundle_answers
from tests.support.console_rollouts import SUPPORT_6, SUPPORT_7, TRIAGE_2, TRIAGE_3

GATE = {
    "passport": {"outcome": "passed", "reason": "the engine computes what the trainer did", "evidence": {}},
    "held_out": {
        "outcome": "passed",
        "reason": "success .71 of the candidate, .60 of stable",
        "evidence": {"candidate": 0.71, "stable": 0.6, "tasks": 200, "p_value": 0.02},
    },
}


def policy_answers(now: datetime) -> dict[str, Any]:
    """By `METHOD path`."""
    return {
        "GET /coordinator/v1/models": ModelsOut(models=models(now)),
        "GET /coordinator/v1/models/support": RoleModelsOut(
            role="support", versions=[one for one in models(now) if one.role == "support"], training=[]
        ),
        "GET /coordinator/v1/models/support/7/lineage": lineage(now),
        "GET /coordinator/v1/replay/prompts": prompts(now),
        "POST /gateway/v1/chat/completions": _answered,
        **bundle_answers(now),
    }


def models(now: datetime) -> list[ModelOut]:
    """Five versions."""
    return [
        model("support", 5, "support@5-aa03e1c7", "archived", "sft", now - timedelta(days=20), 0.58),
        model("support", 6, SUPPORT_6.name, "stable", "rloo", now - timedelta(days=12), 0.61),
        model("support", 7, SUPPORT_7.name, "canary", "rloo", now - timedelta(days=2), 0.66),
        model("triage", 2, TRIAGE_2.name, "stable", "sft", now - timedelta(days=9), None),
        model("triage", 3, TRIAGE_3.name, "registered", "dpo", now - timedelta(minutes=50), None),
    ]


def model(
    role: str, version: int, name: str, state: str, algorithm: str, at: datetime, reward: float | None
) -> ModelOut:
    """A registered policy."""
    stage = {"stable": "production", "archived": "archived"}.get(state, "staging")
    return ModelOut(
        role=role,
        version=version,
        name=name,
        stage=stage,
        status="pending" if state == "registered" else "ready",
        state=state,
        digest=name[-8:] * 8,
        uri=f"s3://ratchet/policies/{name[-8:] * 8}.json",
        kind="adapter",
        base_model="SmolLM2-135M-Instruct",
        created_at=at,
        algorithm=algorithm,
        parent=version - 1 if version > 2 else None,
        training_job_id=f"{role}-{algorithm}-{version}",
        training_samples=1800 + 240 * version,
        final_reward=reward,
        metrics={"kl": 0.021, "entropy": 1.34, "reward_mean": reward} if reward is not None else None,
        gate=GATE if state != "registered" else None,
    )


def lineage(now: datetime) -> LineageOut:
    """Of the canary."""
    return LineageOut(
        policy=models(now)[2],
        job=JobPart(
            training_job_id="support-rloo-7",
            algorithm="rloo",
            state="completed",
            requester="coordinator",
            trigger_reason="threshold_reached",
            created_at=now - timedelta(days=2, hours=2),
            finished_at=now - timedelta(days=2),
            attempt=1,
            events={},
        ),
        snapshot=SnapshotPart(
            uri="s3://ratchet/snapshots/5d2c.json",
            digest="5d2c0e91" * 8,
            format="trajectories",
            rows=3480,
            created_at=now - timedelta(days=2, hours=2),
            reward_function="helpdesk",
            left_out={"no log-probabilities": 212, "answered by another policy": 61},
            parent_policy=SUPPORT_6.name,
        ),
        trajectories=TrajectoriesPage(total=3480, offset=0, items=[_trajectory(now, place) for place in range(8)]),
        preferences=PreferencesPage(total=0, offset=0, items=[]),
        rewards=[RewardsPart(function="helpdesk", trajectories=3480, mean=0.614, newest_revision=2)],
        feedback=[
            RaterPart(rater="rita", source="console", kind="thumbs", count=84),
            RaterPart(rater="ada", source="console", kind="correction", count=11),
            RaterPart(rater=None, source="shop", kind="stars", count=402),
        ],
        announcements=[
            EventPart(event_id="e1", kind="model.deployed", what="registered", at=now - timedelta(days=2)),
            EventPart(event_id="e2", kind="model.rollout", what="start", at=now - timedelta(days=2)),
        ],
        counted=3480,
        missing=[],
    )


def _trajectory(now: datetime, place: int) -> TrajectoryPart:
    at = now - timedelta(days=3, minutes=place * 9)
    reward = RewardPart(
        event_id=f"r{place}", total=round(0.2 + 0.09 * place, 2), function="helpdesk", revision=1, at=at
    )
    return TrajectoryPart(
        trajectory_id=f"0197e1{place}0-0000-7000-8000-000000000000",
        event_id=f"t{place}",
        task=f"refund-{900 + place * 13}",
        source="production",
        outcome="success" if place > 2 else "failure",
        policy_version=6,
        ended_at=at,
        reward=reward,
    )


def prompts(now: datetime) -> ReplayPromptsOut:
    """Two that agents sent."""
    texts = ["My parcel 4471 came broken. Can I have my money back?", "Where is my order from Tuesday?"]
    return ReplayPromptsOut(
        role="support",
        version=7,
        since=now - timedelta(days=2),
        lineage=[7, 6, 5],
        prompts=[
            ReplayPromptOut(
                turn_id=f"turn-{place}",
                trajectory_id=f"0197e1{place}0-0000-7000-8000-000000000000",
                task=f"refund-{place}",
                at=now - timedelta(hours=place + 1),
                messages=[{"role": "user", "content": text}],
                tools=[],
                sampling={},
            )
            for place, text in enumerate(texts)
        ],
        left_out={},
    )


def _answered(posted: Any) -> dict[str, Any]:
    return completion(posted.body["model"])


def completion(name: str) -> dict[str, Any]:
    """What a policy answers."""
    better = "I am sorry about parcel 4471. I have refunded 24.90 to your card; it arrives within three days."
    plain = "Please send a picture of the broken parcel, and I will look into a refund."
    content = better if name == SUPPORT_7.name else plain
    return {"model": name, "choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}
