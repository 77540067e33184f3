"""What the plans ask of the services is what the services take."""

from __future__ import annotations

import os

import pytest

from ratchet.canary_deployer.settings import Settings
from ratchet.demo.jobs import cycle_job, drill_job, sabotage_job, ticket_job
from ratchet.demo.plan import DEMO, SMALL, Plan, deployer_environment
from ratchet.kernel.bus import utc_now
from ratchet.rl_coordinator.domain.requests import Abilities, problems
from ratchet.rl_coordinator.http_models import JobIn

PLANS = pytest.mark.parametrize("plan", [DEMO, SMALL], ids=["demo", "small"])


@PLANS
def test_the_coordinator_takes_every_job(plan: Plan) -> None:
    abilities = Abilities(training_enabled=True, algorithms=frozenset({"sft", "rloo"}))
    base = "s3://ratchet/policies/abc.json"
    for body in (drill_job(plan, base), ticket_job(plan, base), cycle_job(plan, 1), sabotage_job(plan)):
        request = JobIn.model_validate(body).request("00000000-0000-7000-8000-000000000000", utc_now())
        assert problems(request, abilities) == []


@PLANS
def test_the_deployer_takes_the_rollouts(plan: Plan) -> None:
    before = dict(os.environ)
    os.environ.update(deployer_environment(plan.rollouts))
    try:
        settings = Settings()
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert settings.stage_weights == tuple(weight / 100 for weight in plan.rollouts.stages)
    assert settings.heldout_tasks == plan.rollouts.heldout_tasks
    assert settings.heldout_command is not None


@PLANS
def test_a_bad_policy_learns_from_the_opposite_of_what_a_good_one_learns_from(plan: Plan) -> None:
    assert cycle_job(plan, 1)["dataset"]["reward_transform"] == "identity"
    assert sabotage_job(plan)["dataset"]["reward_transform"] == "negate"
