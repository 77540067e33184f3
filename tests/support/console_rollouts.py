"""Rollouts of the console's scene: one with a canary at its second stage, one that waits for an approval."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ratchet.core.contract.http.console import (
    DecisionPointOut,
    FailuresOut,
    PastRolloutOut,
    PastRolloutsOut,
    RolloutHistoryOut,
    TrajectoryBrief,
)
from ratchet.core.contract.http.rollouts import (
    ArmOut,
    ArmsOut,
    AuditOut,
    ComplaintsOut,
    DifferenceOut,
    EvidenceSampleOut,
    ForecastOut,
    GateOut,
    Horizon,
    PoliciesOut,
    RolePoliciesOut,
    RolloutOut,
    RolloutsOut,
    ShareDifferenceOut,
    SubjectsOut,
    TrailOut,
)
from ratchet.core.contract.state import PolicyStage, PolicyVersion, Route, ServedPolicy

SUPPORT_6 = ServedPolicy(version=6, name="support@6-1f0c77aa", digest="1f0c77aa" * 8)
SUPPORT_7 = ServedPolicy(version=7, name="support@7-9be2d410", digest="9be2d410" * 8)
TRIAGE_2 = ServedPolicy(version=2, name="triage@2-77d1e05b", digest="77d1e05b" * 8)
TRIAGE_3 = ServedPolicy(version=3, name="triage@3-c41f9b02", digest="c41f9b02" * 8)
THRESHOLDS = {
    "rollback": 40.0,
    "complaints": 200.0,
    "first_call": 100.0,
    "safety": 200.0,
    "sample_ratio": 200.0,
    "promotion": 20.0,
    "run": 0.005,
    "coverage": 0.8,
}
DIFFERENCES = {"failure": -0.031, "reward": -0.024, "missing": 0.004, "latency": 0.061}
POINTS = 36
DECIDED = (
    (0, "start", "canary_deployer", "all gates passed", 0),
    (9, "hold", "canary_deployer", "a person has to look: 1 canary trajectories violated safety", 0),
    (14, "resume", "ada (key k1)", "read it: the answer quotes what the customer wrote", 0),
    (20, "pause", "ada (key k1)", "the warehouse is moved tonight", 0),
    (28, "resume", "ada (key k1)", "the warehouse is back", 0),
    (34, "advance", "canary_deployer", "stage 1 passed: 2,100 canary trajectories settled, no evidence of harm", 1),
)
"""Hours after the start, verdict, actor, reason and stage."""


def rollout_answers(now: datetime) -> dict[str, Any]:
    """By `METHOD path`."""
    running, waiting = support(now), triage(now)
    history = RolloutHistoryOut(
        rollout_id=running.rollout_id, role="support", from_version=6, to_version=7, decisions=decisions(now)
    )
    gating = RolloutHistoryOut(rollout_id=waiting.rollout_id, role="triage", from_version=2, to_version=3, decisions=[])
    return {
        "GET /deployer/v1/rollouts": RolloutsOut(rollouts=[running, waiting]),
        "GET /deployer/v1/rollouts/support": running,
        "GET /deployer/v1/rollouts/triage": waiting,
        "GET /deployer/v1/rollouts/support/trail": trail(now),
        "GET /deployer/v1/rollouts/triage/trail": TrailOut(rollout_id=waiting.rollout_id, role="triage", samples=[]),
        "GET /deployer/v1/rollouts/support/audit": audit("support", now),
        "GET /deployer/v1/rollouts/triage/audit": audit("triage", now),
        "GET /deployer/v1/policies": PoliciesOut(roles=[role_policies("support", now), role_policies("triage", now)]),
        "GET /deployer/v1/policies/support": role_policies("support", now),
        "GET /deployer/v1/policies/triage": role_policies("triage", now),
        "GET /v1/rollouts/support/past": past(now),
        "GET /v1/rollouts/triage/past": PastRolloutsOut(rollouts=[]),
        "GET /v1/rollouts/support/history": history,
        "GET /v1/rollouts/triage/history": gating,
        "GET /v1/rollouts/support/failures": failures(now),
        "GET /v1/rollouts/triage/failures": FailuresOut(stable=[], canary=[]),
    }


def support(now: datetime) -> RolloutOut:
    """Two days under way, at its second stage."""
    return RolloutOut(
        rollout_id="0197f3b2-64c1-7f1e-9d0a-5b8f3c2e7a10",
        role="support",
        state="running",
        strategy="canary",
        parked=False,
        forecast=ForecastOut(
            trajectories_per_day=24_100.0,
            subjects_per_day=9_640.0,
            seen_in_s=86_400.0,
            expected_days=3.4,
            expected_days_by_stage=[0.8, 1.0, 1.6],
        ),
        horizon=Horizon(seconds=2400.0, basis="measured on stable's outcomes", outcomes=1840, quantile_s=1710.0),
        complaints=ComplaintsOut(margin=0.5, more_evidence=0.0396),
        candidate=SUPPORT_7,
        stable=SUPPORT_6,
        stage=1,
        weight=0.25,
        stage_since=now - timedelta(hours=19),
        waiting_for=["4,770 of 6,000 canary trajectories in this stage", "coverage of the canary .79, at least .80"],
        stage_age_s=19 * 3600.0,
        deadline_in_s=4.6 * 86400,
        reason="stage 1 passed: 2,100 canary trajectories settled, no evidence of harm",
        actor="canary_deployer",
        approval="automated",
        created_at=now - timedelta(days=2, hours=5),
        finished_at=None,
        gates=gates("passed"),
        arms=ArmsOut(
            stable=arm(33_288, 33_210, 5_413, 0.61, 133_100), canary=arm(6_910, 6_870, 907, 0.634, 27_640), mixed=3
        ),
        differences={name: difference(name, value, 1.0) for name, value in DIFFERENCES.items()},
        coverage={"stable": 0.931, "canary": 0.79},
        run=0.21,
        run_of_trajectories=0.08,
        thresholds=THRESHOLDS,
        budget={"evidence": 0.025, "complaints": 0.005, "first_call": 0.01, "run": 0.005, "safety": 0.005},
        pending=118,
        subjects=SubjectsOut(seen=17_120, before=412, starts_before=1000, split=1, note=None),
        noticed=[],
        e_values=e_values(POINTS),
        margin=0.05,
        decisions=POINTS,
        last_hash="4f1d" * 16,
    )


def triage(now: datetime) -> RolloutOut:
    """It waits for an approval."""
    none = arm(0, 0, 0, None, 0)
    return msgspec.structs.replace(
        support(now),
        rollout_id="0197f4e0-11aa-7c3b-8e21-0d4f6a9b1c22",
        role="triage",
        state="awaiting_approval",
        candidate=TRIAGE_3,
        stable=TRIAGE_2,
        stage=0,
        weight=0.0,
        stage_since=None,
        waiting_for=[],
        forecast=None,
        deadline_in_s=None,
        reason="the held-out gate could not decide: .71 against .69 on 200 tasks",
        created_at=now - timedelta(minutes=44),
        gates=gates("needs_approval"),
        arms=ArmsOut(stable=none, canary=none, mixed=0),
        differences={},
        coverage={},
        e_values={},
        pending=0,
        subjects=SubjectsOut(seen=0, before=1000, starts_before=1000, split=0, note=None),
        run=1.0,
        run_of_trajectories=1.0,
        decisions=0,
        last_hash=None,
    )


def gates(held_out: str) -> list[GateOut]:
    """Three of them."""
    stable, p_value = (0.6, 0.02) if held_out == "passed" else (0.69, 0.31)
    return [
        GateOut(gate="passport", outcome="passed", reason="the engine computes what the trainer did", evidence={}),
        GateOut(
            gate="held_out",
            outcome=held_out,
            reason=f"success .71 of the candidate, {stable:.2f} of stable".replace("0.", "."),
            evidence={"candidate": 0.71, "stable": stable, "tasks": 200, "p_value": p_value},
        ),
        GateOut(
            gate="replay", outcome="not_run", reason="no reward function that scores a replayed answer", evidence={}
        ),
    ]


def arm(started: int, settled: int, failures: int, reward: float | None, calls: int) -> ArmOut:
    """An arm of a rollout."""
    return ArmOut(
        started=started,
        trajectories=settled,
        failures=failures,
        failure_rate=failures / settled if settled else "no trajectories",
        missing=settled // 60,
        unscored=settled // 90,
        reward_mean=reward if reward is not None else "no rewards",
        calls=calls,
        error_rate=0.0061 if calls else "no calls",
        hung_calls=calls // 9000,
        negative_feedback=0.083 if settled else "no feedback",
        complaints=settled // 200,
        safety_violations=0,
    )


def margin(metric: str) -> float:
    """As the rules have it."""
    return 0.1 if metric == "latency" else 0.05


def difference(metric: str, value: float, width: float) -> DifferenceOut:
    """With intervals that are so many times as wide as after two days, of the shares .1 and .25."""

    def share(weight: float, value: float, half: float, stable: int) -> ShareDifferenceOut:
        canary = round(stable * weight / (1 - weight))
        low, high = round(value - half, 4), round(value + half, 4)
        return ShareDifferenceOut(
            weight=weight, difference=round(value, 4), low=low, high=high, stable=stable, canary=canary
        )

    half = width * (0.052 if metric == "latency" else 0.034)
    shares = [share(0.1, value * 0.6, half * 2.1, 18_900), share(0.25, value * 1.2, half * 1.4, 14_310)]
    return DifferenceOut(
        difference=value,
        margin=margin(metric),
        low=round(value - half, 4),
        high=round(value + half, 4),
        by_share=shares,
    )


def trail(now: datetime) -> TrailOut:
    """Twice an hour since the canary began."""
    began, hours = now - timedelta(days=2, hours=5), 53
    samples = [
        EvidenceSampleOut(at=began + timedelta(hours=half / 2), e_values=e_values(half / 2 * POINTS / hours))
        for half in range(1, 2 * hours)
    ]
    return TrailOut(rollout_id=support(now).rollout_id, role="support", samples=samples)


def e_values(place: float) -> dict[str, dict[str, float]]:
    """The evidence after so many decisions."""
    wave = math.sin(place / 3)
    rollback = {
        "failure": 0.9 * math.exp(-place / 40) + 0.3 * abs(wave),
        "reward": 0.7 + 0.2 * wave,
        "missing": 1.1 + 0.4 * wave,
        "latency": 1.3 * math.exp(place / 60) + 0.5 * wave,
    }
    promotion = {"failure": math.exp(place / 13), "reward": math.exp(place / 16 + 0.2 * wave)}
    return {
        "rollback": {**rollback, "combined": sum(rollback.values()) / 3},
        "promotion": {**promotion, "combined": min(promotion.values()), "trajectories": 1.7 * min(promotion.values())},
        "suspension": {"combined": sum(rollback.values()) / 2, "complaints": 1.2, "first_call": 0.9, "safety": 1.0},
        "tests": {
            "complaints": 1.1 + 0.3 * wave,
            "first_call": 0.8 + 0.1 * wave,
            "safety": 1.0,
            "sample_ratio": 1.4 + 0.9 * wave,
        },
    }


def decisions(now: datetime) -> list[DecisionPointOut]:
    """From the start until now."""
    began = now - timedelta(days=2, hours=5)
    return [
        DecisionPointOut(
            sequence=sequence,
            at=began + timedelta(hours=hours),
            verdict=verdict,
            actor=actor,
            reason=reason,
            stage=stage,
            weight=(0.1, 0.25)[stage],
            e_values=e_values(hours * POINTS / 53),
            differences={
                name: difference(name, round(value * (0.4 + hours / 90), 4), 2.0 - hours / 53)
                for name, value in DIFFERENCES.items()
            },
            counts={},
        )
        for sequence, (hours, verdict, actor, reason, stage) in enumerate(DECIDED)
    ]


def audit(role: str, now: datetime) -> AuditOut:
    """A whole chain."""
    return AuditOut(
        role=role,
        decisions=POINTS + 71,
        whole=True,
        problem=None,
        since=now - timedelta(days=41),
        complete=True,
        first_break=None,
    )


def past(now: datetime) -> PastRolloutsOut:
    """One was promoted, one rolled back."""
    verdicts = [
        ("promote", "the evidence suffices, and lasted for the soak"),
        ("roll_back", "rollback e-value 41.2 of reward"),
    ]
    return PastRolloutsOut(
        rollouts=[
            PastRolloutOut(
                rollout_id=f"0197a{place}00-0000-7000-8000-00000000000{place}",
                role="support",
                from_version=5 - place,
                to_version=6 - place,
                verdict=verdict,
                reason=reason,
                actor="canary_deployer",
                decisions=41 + place,
                began_at=now - timedelta(days=12 + 9 * place),
                ended_at=now - timedelta(days=8 + 9 * place),
            )
            for place, (verdict, reason) in enumerate(verdicts)
        ]
    )


def failures(now: datetime) -> FailuresOut:
    """The lowest rewards of both arms."""
    return FailuresOut(
        stable=[brief(now, place, "stable", SUPPORT_6.name) for place in range(4)],
        canary=[brief(now, place, "canary", SUPPORT_7.name) for place in range(3)],
    )


def brief(now: datetime, place: int, side: str, policy: str) -> TrajectoryBrief:
    """A trajectory in one line."""
    return TrajectoryBrief(
        trajectory_id=f"0197f5{place}0-{side}-7000-8000-0000000000{place:02d}",
        role="support",
        state="ended",
        agent_id="helpdesk",
        name=None,
        question=None,
        task_id=f"refund-{1041 + place * 7}",
        source="production",
        policy=policy,
        arm=side,
        model=None,
        turns=5 + place,
        calls=3 + place,
        answers=3 + place - place % 2,
        failed_calls=place % 2,
        outcome="failure",
        reward=round(0.05 * place, 2),
        revision=1,
        thumbs=-1 if place == 0 else 0,
        started_at=now - timedelta(minutes=30 + 11 * place),
        ended_at=now - timedelta(minutes=26 + 11 * place),
        last_call_at=now - timedelta(minutes=26 + 11 * place),
        latency_ms=4210.0 + 300 * place,
    )


def role_policies(role: str, now: datetime) -> RolePoliciesOut:
    """A role's route, and its last versions."""
    stable, candidate = (SUPPORT_6, SUPPORT_7) if role == "support" else (TRIAGE_2, TRIAGE_3)
    stage = PolicyStage.CANARY if role == "support" else PolicyStage.REGISTERED
    return RolePoliciesOut(
        role=role,
        route=Route(role=role, stable=stable, next_version=candidate.version + 1),
        policies=[
            version(role, stable, PolicyStage.STABLE, now - timedelta(days=9)),
            version(role, candidate, stage, now - timedelta(days=2)),
        ],
    )


def version(role: str, policy: ServedPolicy, stage: PolicyStage, at: datetime) -> PolicyVersion:
    """A registered policy."""
    return PolicyVersion(
        role=role,
        version=policy.version,
        name=policy.name,
        digest=policy.digest,
        uri=f"s3://ratchet/policies/{policy.digest}.json",
        kind="adapter",
        base_model="SmolLM2-135M-Instruct",
        created_at=at,
        stage=stage,
        algorithm="rloo",
    )
