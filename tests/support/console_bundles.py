"""Bundles of the console's scene: a role whose agents' own calls are version 0, a stable bundle, and a candidate."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from ratchet.core.contract.bundle import (
    NO_BUNDLE,
    Bundle,
    BundleModel,
    Example,
    Instructions,
    SamplingValues,
    ToolTexts,
)
from ratchet.core.contract.http.models import LineageOut, ModelOut, PreferencesPage, TrajectoriesPage
from ratchet.core.contract.http.rollouts import BundleOut, RolePoliciesOut
from ratchet.core.contract.state import PolicyStage, PolicyVersion, Route, ServedPolicy
from ratchet.core.rules.bundles import model_name

OLD = """You are the returns desk of {{variables.shop}}.

{{instructions}}

Answer in one short paragraph.
Refund what is defective within 30 days.
Never promise a date of delivery.
Ask for the order's number first.
Write in the customer's language.
"""
NEW = OLD.replace("within 30 days", "within 60 days, and pay the postage").replace(
    "Ask for the order's number first.\n", ""
)
SUBMIT = ToolTexts(description="Pay an order back.", parameters={"sum": "In the order's currency."})
ONE = Bundle(
    instructions=Instructions(text=OLD, variables=("shop",)),
    tools={"refund": SUBMIT, "delete_order": ToolTexts(hidden=True)},
    defaults=SamplingValues(temperature=0.7),
)
TWO = Bundle(
    model=BundleModel(name="small-2", upstream="openai"),
    instructions=Instructions(text=NEW, variables=("shop",)),
    tools={"refund": SUBMIT, "delete_order": ToolTexts(hidden=True)},
    examples=(
        Example(role="user", content="The lamp came broken."),
        Example(role="assistant", content="I am sorry. I have refunded 39.90; keep the lamp."),
    ),
    defaults=SamplingValues(temperature=0.7),
    overrides=SamplingValues(max_tokens=300),
    response_format={"type": "json_object"},
)
VERSIONS = {0: (NO_BUNDLE, PolicyStage.ARCHIVED), 2: (ONE, PolicyStage.STABLE), 3: (TWO, PolicyStage.CANARY)}
"""By version; version 1 was an adapter that is not kept."""
SERVED = {
    version: ServedPolicy(
        version=version, name=f"returns@{version}-{version}a2b3c4d", digest=f"{version}a2b3c4d" * 8, bundle=version > 0
    )
    for version in VERSIONS
}


def bundle_answers(now: datetime) -> dict[str, Any]:
    """By `METHOD path`."""
    answers: dict[str, Any] = {"GET /deployer/v1/policies/returns": returns(now)}
    for policy in returns(now).policies:
        at = f"returns/{policy.version}"
        answers[f"GET /deployer/v1/policies/{at}/bundle"] = named(VERSIONS[policy.version][0], policy)
        answers[f"GET /coordinator/v1/models/{at}/lineage"] = lineage(policy)
    return answers


def returns(now: datetime) -> RolePoliciesOut:
    """The role's versions."""
    route = Route(role="returns", stable=SERVED[2], next_version=4)
    return RolePoliciesOut(role="returns", route=route, policies=[policy(version, now) for version in VERSIONS])


def policy(version: int, now: datetime) -> PolicyVersion:
    """One of them, as the deployer has it."""
    bundle, stage = VERSIONS[version]
    return PolicyVersion(
        role="returns",
        version=version,
        name=SERVED[version].name,
        digest=SERVED[version].digest,
        uri=f"s3://ratchet/policies/{SERVED[version].digest}.json" if version else "",
        kind="bundle",
        base_model=model_name(bundle),
        created_at=now - timedelta(days=9 - 2 * version),
        stage=stage,
        parent=2 if version == 3 else None,
        reason="ada: kinder, and it pays the postage" if version == 3 else None,
    )


def named(bundle: Bundle, of: PolicyVersion) -> BundleOut:
    """As the deployer answers for one."""
    return BundleOut(policy=of, bundle=bundle, new=False)


def model(of: PolicyVersion) -> ModelOut:
    """As the coordinator lists it."""
    known = {name: getattr(of, name) for name in ("role", "version", "name", "digest", "uri", "kind", "base_model")}
    stage = {PolicyStage.STABLE: "production", PolicyStage.ARCHIVED: "archived"}.get(of.stage, "staging")
    return ModelOut(
        **known,
        stage=stage,
        status="ready",
        state=of.stage.value,
        created_at=of.created_at,
        parent=of.parent,
        reason=of.reason,
    )


def lineage(of: PolicyVersion) -> LineageOut:
    """Of a bundle that a person wrote."""
    return LineageOut(
        policy=model(of),
        job=None,
        snapshot=None,
        trajectories=TrajectoriesPage(total=0, offset=0, items=[]),
        preferences=PreferencesPage(total=0, offset=0, items=[]),
        rewards=[],
        feedback=[],
        announcements=[],
        counted=0,
        missing=[f"{of.name} names no training job", f"nothing says which snapshot {of.name} was trained on"],
    )


def large(letters: int) -> Bundle:
    """A bundle whose instructions have so many letters, in lines of 60."""
    line = "Refund what is defective, and be kind to the customer who writes.\n"
    return msgspec.structs.replace(NO_BUNDLE, instructions=Instructions(text=(line * (letters // 60))[:letters]))
