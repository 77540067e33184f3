"""Patterns and plans of the console's scene: refunds that fail and their plan, a hostile name, one that is closed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from ratchet.core.contract import LearningEvent
from ratchet.core.contract.bundle import Bundle, Instructions
from ratchet.core.contract.http.analyst import PatternOut, PatternsOut, PlanOut, PlansOut, TrailOut
from ratchet.core.contract.learning import AdaptationPlan, Effect, Pattern, PlanChange, PlanStep, Trigger

REFUNDS, HOSTILE, CLOSED, PLAN = "a" * 32, "b" * 32, "c" * 32, "d" * 32
HOSTILE_NAME = "<img src=x onerror=document.title='owned'>\u202e"
EVIDENCE = "0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11"


def changes_scene(now: datetime) -> dict[str, Any]:
    """By `METHOD path`."""
    every, plan = patterns(now), plan_of(now)
    base = "/analyst/v1"

    def of_state(asked: Any) -> PatternsOut:
        return PatternsOut(
            patterns=[pattern for pattern in every if pattern.state == asked.query.get("state", pattern.state)]
        )

    shown = {
        f"GET {base}/patterns/support/{pattern.pattern_id}": PatternOut(
            pattern=pattern, plans=[plan] if pattern.pattern_id == REFUNDS else []
        )
        for pattern in every
    }
    return {
        f"GET {base}/patterns": of_state,
        f"GET {base}/plans": PlansOut(plans=[plan]),
        f"GET {base}/plans/support/{PLAN}": PlanOut(plan=plan, pattern=every[0]),
        f"GET {base}/learning/support/events": TrailOut(events=events(now)),
        **shown,
    }


def patterns(now: datetime) -> list[Pattern]:
    """The dearest first."""
    refunds = Pattern(
        pattern_id=REFUNDS,
        role="support",
        kind="failure_cluster",
        finding="tool_error",
        statement="41 % of the trajectories whose question says refund fail, against 12 % of the others.",
        focus_area="decision_making",
        triggers=(Trigger(attribute="term", value="refund"),),
        effect=Effect(measure="failure", value=0.29, low=0.24, high=0.34),
        share=0.18,
        count=412,
        reward_cost=96.4,
        cost_usd=3.1,
        confidence=0.95,
        p_value=0.0004,
        trend=(0.11, 0.13, 0.12, 0.16, 0.18),
        evidence=(EVIDENCE,),
        terms=("refund", "late"),
        action="bundle",
        advice="Say in the instructions that the date is looked at before a refund.",
        opened_at=now - timedelta(days=2),
        seen_at=now - timedelta(minutes=20),
    )
    hostile = replace(
        refunds,
        pattern_id=HOSTILE,
        statement=f"Calls of {HOSTILE_NAME} are repeated in 4 % of the trajectories.",
        finding="repeated_calls",
        kind="behavior",
        triggers=(Trigger(attribute="tool", value=HOSTILE_NAME),),
        reward_cost=4.2,
        cost_usd=0.0,
        action="note",
        advice=f"Look at {HOSTILE_NAME}.",
    )
    closed = replace(
        hostile,
        pattern_id=CLOSED,
        statement="Answers got longer while rewards did not.",
        triggers=(),
        state="closed",
        closed_at=now,
        closed_by="support@7-9be2d410",
    )
    return [refunds, hostile, closed]


def plan_of(now: datetime) -> AdaptationPlan:
    """A draft, because of the refunds."""
    text = "Look at the date of an order before you refund it."
    return AdaptationPlan(
        plan_id=PLAN,
        role="support",
        pattern_id=REFUNDS,
        focus_area="decision_making",
        change=PlanChange(
            kind="bundle",
            summary="Add a sentence about dates to the instructions.",
            bundle=Bundle(instructions=Instructions(text=text, mode="append")),
            base="support@6-1f0c77aa",
        ),
        triggers=(Trigger(attribute="term", value="refund"),),
        expected=Effect(measure="failure", value=-0.15, low=-0.29, high=0.0),
        risk="medium",
        success_metrics=("Failures among them fall in the canary.",),
        rollback_criteria=("The rollout is taken back.",),
        history=(PlanStep(state="draft", at=now - timedelta(hours=1), by="analyst"),),
    )


def events(now: datetime) -> list[LearningEvent]:
    """The oldest first."""
    opened = LearningEvent(
        at=now - timedelta(days=2),
        phase="pattern_identification",
        what="pattern_opened",
        summary="Refunds fail: opened in two windows.",
        key="1",
        role="support",
        pattern_id=REFUNDS,
    )
    drafted = replace(
        opened,
        at=now - timedelta(hours=1),
        phase="adaptation",
        what="plan_drafted",
        summary="Drafted a sentence about dates.",
        key="2",
        plan_id=PLAN,
    )
    return [opened, drafted, replace(opened, summary="Of another pattern.", pattern_id=HOSTILE, key="3")]
