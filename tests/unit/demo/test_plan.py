"""What the plans ask of the services is what the services take."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import msgspec
import pytest

from ratchet.bus.clock import utc_now
from ratchet.canary_deployer.settings import Settings
from ratchet.demo.agents_process import Shift
from ratchet.demo.plan import DEMO, REAL, SMALL, Plan, bad_job, cycle_job, deployer_environment, drill_job, ticket_job
from ratchet.rl_coordinator.http.job_request import job_body, training_request
from ratchet.rl_coordinator.jobs.domain.requests import Abilities, problems
from tests.support.training import AMOUNTS

PLANS = pytest.mark.parametrize("plan", [DEMO, SMALL, REAL], ids=["demo", "small", "real"])


@PLANS
def test_the_coordinator_takes_every_job(plan: Plan) -> None:
    abilities = Abilities(training_enabled=True, algorithms=frozenset({"sft", "rloo"}), amounts=AMOUNTS)
    base = "s3://ratchet/policies/abc.json"
    drills = [] if plan.drills is None else [drill_job(plan, plan.drills, base)]
    for body in (*drills, ticket_job(plan, base), cycle_job(plan, 1), bad_job(plan)):
        request = training_request(
            job_body().read(msgspec.json.encode(body)), "00000000-0000-7000-8000-000000000000", utc_now()
        )
        assert problems(request, abilities) == []


@PLANS
def test_the_deployer_takes_the_rollouts(plan: Plan) -> None:
    before = dict(os.environ)
    os.environ.update(deployer_environment(plan.rollouts, Path("some where", "exams"), plan.world))
    try:
        settings = Settings()
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert settings.stage_weights == tuple(weight / 100 for weight in plan.rollouts.stages)
    assert settings.heldout_tasks == plan.rollouts.heldout_tasks
    assert settings.horizon_s < plan.canary_deadline_s  # a trajectory without an end holds up no verdict for good
    assert settings.heldout_command is not None
    assert shlex.split(settings.heldout_command)[-1] == str(Path("some where", "exams").absolute())


@PLANS
def test_the_first_policy_and_the_bad_one_imitate_different_clerks(plan: Plan) -> None:
    first, bad = (job["dataset"]["filter"] for job in (ticket_job(plan, "s3://ratchet/base.json"), bad_job(plan)))
    assert (first["task_domains"], bad["task_domains"]) == ([plan.world.domain], [plan.world.bad_domain])


@PLANS
def test_a_cycle_learns_from_as_many_trajectories_as_agents_play_before_it(plan: Plan) -> None:
    assert cycle_job(plan, 1)["dataset"]["sample_size"] == plan.tasks * plan.tries


def test_a_shift_without_an_end_names_no_number_of_tasks() -> None:
    endless = Shift("http://127.0.0.1:1", seed=1, tries=4, agents=2)
    assert "--tasks" not in endless.command()
    assert Shift("http://127.0.0.1:1", seed=1, tries=4, agents=2, tasks=9).command()[-2:] == ["--tasks", "9"]
