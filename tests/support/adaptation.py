"""Patterns, plans and runs for tests of plans, and the two programs that carry plans out, in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import msgspec

from ratchet.analyst.domain.plan import APPROVED, approved
from ratchet.analyst.domain.proposal import Material, drafted, proposed
from ratchet.analyst.http_clients import Coordinator, Deployer, peer
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.learning import AdaptationPlan, Effect, Pattern, Trigger
from ratchet.core.contract.state import PolicyVersion, Route, ServedPolicy
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    Outcome,
    TaskContext,
    Trajectory,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.service.http_client import AsyncApiClient

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
ROLE = "shop"
DIGEST = "ab" * 32
REFUNDS = Trigger(attribute="term", value="refund")


def pattern_of(**members: Any) -> Pattern:
    """Refunds fail."""
    given: dict[str, Any] = {
        "pattern_id": "1" * 32,
        "role": ROLE,
        "kind": "association",
        "finding": "association",
        "statement": "Trajectories that mention refund fail 40 % more often.",
        "focus_area": "decision_making",
        "triggers": (REFUNDS,),
        "effect": Effect(measure="failure", value=0.4, low=0.3, high=0.5),
        "share": 0.08,
        "count": 80,
        "reward_cost": 32.0,
        "confidence": 0.9,
        "p_value": 0.001,
        "action": "bundle",
        "advice": "Look the order up before anything else.",
        "opened_at": NOW - timedelta(days=1),
        "seen_at": NOW,
    }
    return Pattern(**{**given, **members})


def plan_of(pattern: Pattern | None = None, kind: str = "bundle", material: Material | None = None) -> AdaptationPlan:
    """A draft for it."""
    pattern = pattern or pattern_of()
    change = proposed(pattern, kind, material or Material(base=f"{ROLE}@1-{DIGEST[:8]}", bundle=STABLE))
    return drafted(pattern, change, pattern.triggers, 0, NOW)


def approved_plan(plan: AdaptationPlan | None = None) -> AdaptationPlan:
    """One that may be carried out."""
    approved_one = approved(plan or plan_of(), NOW, "ann (key_a)")
    assert approved_one.state == APPROVED
    return approved_one


STABLE = Bundle(defaults=None)


def run_of(number: int, tools: list[str], status: str, text: str = "refund please") -> Trajectory:
    """A run that calls these tools in order."""
    turns = [
        TrajectoryTurn(
            turn_id=n + 1,
            timestamp=NOW,
            observation=Observation(type="user_message" if n == 0 else "tool_result", content=text if n == 0 else "ok"),
            action=Action(type="tool_call", tool_name=tool, tool_args={}),
            result=TurnResult(success=True),
        )
        for n, tool in enumerate(tools)
    ]
    return Trajectory(
        trajectory_id=str(UUID(int=number + 1)),
        session_id=f"s{number}",
        agent_id="a",
        start_timestamp=NOW,
        end_timestamp=NOW,
        turns=turns,
        task_context=TaskContext(task_id="t", instructions="Help."),
        metadata=TrajectoryMetadata(model="m"),
        role=ROLE,
        outcome=Outcome(status=status, verified_by="environment"),
    )


def version_of(number: int, stage: str = "registered", **members: Any) -> PolicyVersion:
    """A version of the role."""
    given: dict[str, Any] = {
        "role": ROLE,
        "version": number,
        "name": f"{ROLE}@{number}-{DIGEST[:8]}",
        "digest": DIGEST,
        "uri": "s3://b/m",
        "kind": "bundle",
        "base_model": "",
        "created_at": NOW,
        "stage": stage,
    }
    return PolicyVersion(**{**given, **members})


@dataclass
class Programs:
    """Deployer and coordinator as far as plans ask them; `asked`: what would change something. `lost`: answers are lost
    after they took effect; `forbidden`: the key may look alone; `answers`: something else at their address does so."""

    versions: list[PolicyVersion] = field(default_factory=lambda: [version_of(1, "stable")])
    bundles: dict[int, Bundle] = field(default_factory=lambda: {1: STABLE})
    rollout: dict[str, Any] | None = None
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    refuses: str | None = None
    refused_by: int = 400
    proposal: object = None
    lost: bool = False
    forbidden: bool = False
    answers: httpx.Response | None = None

    @property
    def stable(self) -> ServedPolicy:
        return next(
            ServedPolicy(version=each.version, name=each.name, digest=each.digest, bundle=each.kind == "bundle")
            for each in self.versions
            if each.stage == "stable"
        )

    def deployer(self) -> Deployer:
        return Deployer(self._client("deployer"))

    def coordinator(self) -> Coordinator:
        return Coordinator(self._client("coordinator"))

    def _client(self, name: str) -> AsyncApiClient:
        return AsyncApiClient(peer(name, f"http://{name}", None), httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if self.answers is not None:
            return self.answers
        if request.method == "GET":
            return self._read(path)
        body = json.loads(request.content)
        if self.forbidden:
            return _error(403, "the key lacks operate")
        if body.get("dry_run"):
            return _json({"policy": version_of(9), "bundle": body["bundle"], "new": True})
        self.asked.append((path, body))
        if self.refuses is not None:
            return _error(self.refused_by, self.refuses)
        made = self._act(path, body)
        if self.lost:
            raise httpx.ReadError("the answer is lost")
        return made

    def _read(self, path: str) -> httpx.Response:
        parts = path.strip("/").split("/")
        if parts[1] == "policies" and parts[-1] == "bundle":
            number = int(parts[3])
            policy = next(each for each in self.versions if each.version == number)
            return _json({"policy": policy, "bundle": self.bundles[number], "new": False})
        if parts[1] == "policies":
            return _json({"role": ROLE, "route": Route(role=ROLE, stable=self.stable), "policies": self.versions})
        if parts[1] == "rollouts":
            return _json(self.rollout) if self.rollout is not None else _error(404, "there was no rollout yet")
        if parts[-1] == "plan" and self.proposal is not None:
            return _json(self.proposal)
        if parts[-1] == "jobs":
            return _json({"jobs": [*self.jobs.values()], "total": len(self.jobs)})
        job = self.jobs.get(parts[-1])
        return _json(job) if job is not None else _error(404, "there is no such job")

    def _act(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path.endswith("/bundles"):
            key = body["idempotency_key"]
            made = [each for each in self.versions if each.idempotency_key == key]
            if made:
                return _json({"policy": made[0], "bundle": self.bundles[made[0].version], "new": False})
            reason = f"{body['actor']}: {body['reason']}"
            policy = version_of(len(self.versions) + 1, reason=reason, idempotency_key=key)
            self.versions.append(policy)
            self.bundles[policy.version] = msgspec.convert(body["bundle"], Bundle)
            return _json({"policy": policy, "bundle": self.bundles[policy.version], "new": True})
        if path.endswith("/rollback"):
            assert self.rollout is not None
            self.rollout |= {"state": "rolled_back", "reason": body["reason"], "finished_at": NOW.isoformat()}
            return _json(self.rollout)
        key = body["idempotency_key"]
        return _json(self.jobs.setdefault(str(UUID(hex=key[-32:])), _job(str(UUID(hex=key[-32:])), body)))

    def canary(self, state: str, **members: Any) -> None:
        """A rollout of the newest version is in this state."""
        newest = self.versions[-1]
        candidate = {"version": newest.version, "name": newest.name, "digest": newest.digest}
        self.rollout = {**ROLLOUT, "state": state, "candidate": candidate, **members}


def _job(job_id: str, body: dict[str, Any]) -> dict[str, Any]:
    config = {
        "algorithm": body["algorithm"],
        "base_model": "stable",
        "dataset": {"source": "clickhouse", "sample_size": 5_000},
        "hyperparameters": body["hyperparameters"],
    }
    request = {
        "training_job_id": job_id,
        "timestamp": NOW.isoformat(),
        "requester": "analyst",
        "trigger_reason": "manual",
        "training_config": config,
        "priority": "normal",
    }
    at = NOW.isoformat()
    shown = {"training_job_id": job_id, "role": ROLE, "algorithm": body["algorithm"], "state": "queued"}
    return {**shown, "priority": "normal", "created_at": at, "updated_at": at, "request": request}


def _json(document: object) -> httpx.Response:
    return httpx.Response(200, content=msgspec.json.encode(document))


def _error(status: int, message: str) -> httpx.Response:
    code = "conflict" if status == 409 else None
    return httpx.Response(status, json={"error": {"message": message, "type": "x", "param": None, "code": code}})


_ARM = {
    "started": 0,
    "trajectories": 0,
    "failures": 0,
    "failure_rate": "no trajectories",
    "missing": 0,
    "unscored": 0,
    "reward_mean": "no trajectories",
    "calls": 0,
    "error_rate": "no calls",
    "hung_calls": 0,
    "negative_feedback": "none",
    "safety_violations": 0,
}
ROLLOUT: dict[str, Any] = {
    "rollout_id": str(UUID(int=77)),
    "role": ROLE,
    "strategy": "canary",
    "parked": False,
    "forecast": None,
    "horizon": {"seconds": 60.0, "basis": "the setting"},
    "stable": None,
    "stage": 0,
    "weight": 0.1,
    "stage_since": None,
    "waiting_for": [],
    "stage_age_s": 0.0,
    "deadline_in_s": None,
    "reason": "it began",
    "actor": "deployer",
    "approval": "automated",
    "created_at": NOW.isoformat(),
    "finished_at": None,
    "gates": [],
    "arms": {"stable": _ARM, "canary": _ARM, "mixed": 0},
    "differences": {},
    "coverage": {},
    "run": 1.0,
    "run_of_trajectories": 1.0,
    "thresholds": {},
    "budget": {},
    "pending": 0,
    "subjects": {"seen": 0, "before": 0, "starts_before": 0, "split": 0, "note": None},
    "noticed": [],
    "e_values": {},
    "margin": 0.0,
    "decisions": 1,
    "last_hash": None,
}
