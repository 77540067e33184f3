"""What the console's pages show in tests and in the documentation's pictures: a small shop at one moment."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from ratchet.core.contract.http.console import (
    AlertsOut,
    AttentionOut,
    ConsumerOut,
    DriftOut,
    LedgerOut,
    LoopOut,
    LoopRoleOut,
    MinuteOut,
    ReceiverOut,
    SentOut,
    ServiceOut,
    StreamOut,
    WatchedOut,
)
from tests.support.console_changes import changes_scene
from tests.support.console_policies import policy_answers
from tests.support.console_rollouts import rollout_answers
from tests.support.console_statistics import statistics_scene
from tests.support.console_training import job_counts, training_scene
from tests.support.console_trajectories import trajectories_scene
from tests.support.console_workflows import workflow_answers


def scene() -> dict[str, Any]:
    """By `METHOD path`: the answers."""
    now = datetime.now(UTC)
    return {
        "GET /v1/loop": loop(now),
        "GET /v1/drift": drift(now),
        "GET /v1/alerts": alerts(now),
        **rollout_answers(now),
        **policy_answers(now),
        **trajectories_scene(now),
        **statistics_scene(now),
        **training_scene(now),
        **workflow_answers(now),
        **changes_scene(now),
    }


def drift(now: datetime) -> DriftOut:
    """A role whose judge no longer agrees with its reward."""
    steady = {"role": "support", "function": "standard-1", "trajectories": 1650, "alert": None, "since": None}
    return DriftOut(
        metrics=[
            WatchedOut(**steady, metric="reward", mean=0.642, evidence=0.31),
            WatchedOut(**steady, metric="length", mean=431.0, evidence=0.04),
            WatchedOut(
                role="support",
                function="standard-1",
                metric="judge",
                trajectories=150,
                mean=-0.128,
                evidence=0.0,
                alert="`judge` less the rest of the reward fell from -0.04 to -0.128 over the last 151 trajectories",
                since=now - timedelta(hours=2),
            ),
        ]
    )


def alerts(now: datetime) -> AlertsOut:
    """Two receivers; one does not take what is sent to it."""
    sent = SentOut(
        at=now - timedelta(minutes=4), title="critical: engine_local is away", alerts=1, attempts=1, error=None
    )
    return AlertsOut(
        alerts=[],
        receivers=[
            ReceiverOut(
                name="oncall", kind="pagerduty", severity="critical", roles=[], state="ready", reason=None, sent=[sent]
            ),
            ReceiverOut(
                name="support-team",
                kind="webhook",
                severity="warning",
                roles=["support"],
                state="failing",
                reason="answered 500",
                sent=[],
            ),
        ],
    )


def loop(now: datetime) -> LoopOut:
    """Two roles; one has a canary that a person holds, the other waits for an approval."""
    return LoopOut(
        at=now,
        minutes=[_minute(now - timedelta(minutes=59 - place), place) for place in range(60)],
        open_trajectories=17,
        streams=[
            StreamOut(
                name="AGENT_EVENTS",
                messages=182_340,
                bytes=412_000_000,
                consumers=[
                    ConsumerOut(name="trajectory-collector", lag=3, unacknowledged=2, redelivered=0),
                    ConsumerOut(name="reward-computer", lag=9, unacknowledged=4, redelivered=1),
                ],
            ),
            StreamOut(
                name="TRAINING",
                messages=941,
                bytes=1_900_000,
                consumers=[ConsumerOut(name="rl-coordinator", lag=0, unacknowledged=0, redelivered=0)],
            ),
        ],
        ledger=[
            LedgerOut(
                stream="AGENT_EVENTS",
                consumer="trajectory-collector",
                watermark=182_331,
                stored=182_310,
                dead=2,
                duplicate=19,
                erased=0,
                lost=0,
                missing=0,
                absent=0,
            )
        ],
        services=[
            ServiceOut(name="gateway", state="ready", reason=None, notes={}),
            ServiceOut(name="collector", state="ready", reason=None, notes={}),
            ServiceOut(name="rewards", state="ready", reason=None, notes={}),
            ServiceOut(name="coordinator", state="ready", reason=None, notes={"retention": "the sweep is 3 h late"}),
            ServiceOut(name="deployer", state="ready", reason=None, notes={}),
            ServiceOut(name="trainer", state="not ready", reason="it loads the base model", notes={}),
            ServiceOut(name="experiment tracker", state="unknown", reason=None, notes={}),
        ],
        roles=[
            LoopRoleOut(
                role="support",
                stable="support@6-1f0c77aa",
                canary="support@7-9be2d410",
                weight=0.25,
                rollout="running",
                active_jobs=2,
                since_last_training=412,
                threshold=1000,
            ),
            LoopRoleOut(
                role="triage",
                stable="triage@2-77d1e05b",
                canary=None,
                weight=None,
                rollout="awaiting_approval",
                active_jobs=0,
                since_last_training=88,
                threshold=None,
            ),
        ],
        jobs=job_counts(now),
        attention=[
            AttentionOut(
                severity="act",
                kind="approval",
                title="triage@3-c41f9b02 waits for an approval",
                detail="Its held-out success is 0.71, stable's 0.69: the difference is too small to pass by itself.",
                role="triage",
                subject="triage-3",
                since=now - timedelta(minutes=38),
            ),
            AttentionOut(
                severity="warning",
                kind="service",
                title="The coordinator notes a fault: retention",
                detail="the sweep is 3 h late",
                role=None,
                subject="coordinator",
                since=None,
            ),
        ],
        unread={},
    )


def _minute(at: datetime, place: int) -> MinuteOut:
    calls = 52 + round(18 * math.sin(place / 7) + 5 * math.sin(place * 2.3))
    return MinuteOut(
        at=at,
        calls=calls,
        failed_calls=4 if place in (21, 22, 23) else place % 2,
        trajectories=calls // 4,
        rewards=calls // 4 - place % 3,
        mean_reward=None if place == 11 else round(0.62 + 0.06 * math.sin(place / 9) + 0.001 * place, 4),
    )
