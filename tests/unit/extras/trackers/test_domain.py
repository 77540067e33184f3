"""What the tracker shall hold of jobs, policies and roles."""

from __future__ import annotations

import pytest

from ratchet.core.contract.state import CanaryRoute, Route, ServedPolicy
from ratchet.core.contract.training import CurrentMetrics, Hyperparameters, Lora, Progress, TrainingError
from ratchet.extras.trackers.domain import Metric, aliases, curve, name_of, run_of, version_tags
from tests.support.training import NOON, after, config, job, registered, request

NOON_MS = round(NOON.timestamp() * 1000)


def served(version: int) -> ServedPolicy:
    return ServedPolicy(version=version, name=f"support@{version}-dddddddd", digest="d" * 64)


def test_a_job_is_a_run_of_its_roles_experiment_once_a_worker_had_it() -> None:
    assert run_of(job(state="queued"), "ratchet") is None
    hyper = Hyperparameters(learning_rate=1e-4, lora=Lora(r=4, alpha=8))
    asked = request(training_config=config("dpo", hyperparameters=hyper))
    running = job(
        state="running",
        request=asked,
        started_at=after(5),
        heartbeat_at=after(9),
        progress=Progress(current_step=3),
        metrics=CurrentMetrics(loss=0.5, accuracy=0.75, grad_norm=1.5),
    )
    run = run_of(running, "ratchet")
    assert run is not None
    assert (run.experiment, run.status, run.started_ms, run.ended_ms) == (
        name_of("ratchet", "support"),
        "RUNNING",
        NOON_MS + 5000,
        None,
    )
    assert (run.tags["agent_role"], run.tags["training_type"]) == ("support", "dpo")
    assert (run.params["learning_rate"], run.params["lora.r"], run.params["algorithm"]) == ("0.0001", "4", "dpo")
    assert Metric("live/train_loss", 0.5, NOON_MS + 9000, 3) in run.live


@pytest.mark.parametrize(
    ("state", "status"),
    [("completed", "FINISHED"), ("failed", "FAILED"), ("cancelled", "KILLED"), ("queued", "SCHEDULED")],
)
def test_how_a_run_stands(state: str, status: str) -> None:
    error = TrainingError(code="OOM", message="x" * 9000)
    run = run_of(job(state=state, attempt=2, finished_at=after(60), error=error), "ratchet")
    assert run is not None
    assert run.status == status
    assert run.ended_ms == (None if state == "queued" else NOON_MS + 60_000)
    assert len(run.tags["ratchet.error"]) == 5000
    assert run.live == []


def test_a_curve_has_the_names_and_times_of_its_steps_and_is_the_same_each_time() -> None:
    lines = (
        b'{"step": 1, "epoch": 1, "seconds": 2.0, "loss": 0.5, "rewards_chosen": 0.1, "grad_norm": 1}\n'
        b'{"step": 2, "epoch": 1, "seconds": 1.5, "loss": 0.25}\n'
    )
    points = list(curve(lines, 1000))
    assert Metric("train_loss", 0.5, 3000, 1) in points
    assert Metric("implicit_reward", 0.1, 3000, 1) in points
    assert Metric("grad_norm", 1.0, 3000, 1) in points
    assert Metric("train_loss", 0.25, 4500, 2) in points
    assert list(curve(lines, 1000)) == points


def test_aliases_follow_the_rollout() -> None:
    first, second = registered(1, stage="stable"), registered(2)
    assert aliases([first, second], Route(role="support", stable=served(1))) == {"production": 1, "staging": 2}
    canary = CanaryRoute(rollout_id="r", policy=served(2), salt="s", schedule=[], lease=1)
    third = registered(3)
    route = Route(role="support", stable=served(1), canary=canary)
    assert aliases([first, registered(2, stage="canary"), third], route) == {"production": 1, "staging": 2}
    promoted = Route(role="support", stable=served(2))
    assert aliases([registered(2, stage="stable")], promoted) == {"production": 2, "staging": None}
    assert aliases([registered(1, stage="refused")], None) == {"production": None, "staging": None}


def test_a_version_names_its_policy() -> None:
    tags = version_tags(registered(7, algorithm="rloo", parent=6, stage="rolled_back", reason="worse"))
    assert tags["ratchet.policy"] == "support@7-dddddddd"
    assert (tags["training_type"], tags["ratchet.parent"], tags["ratchet.stage"]) == ("rloo", "6", "rolled_back")
