"""What the plans ask of the services is what the services take."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ratchet.bus.clock import utc_now
from ratchet.canary_deployer.settings import Settings
from ratchet.local.demo.agents_process import Shift
from ratchet.local.demo.plan import (
    CONTEXT,
    DEMO,
    FULL,
    REAL,
    REAL_FLOAT32,
    Plan,
    bad_job,
    cycle_job,
    deployer_environment,
    drill_job,
    notice,
    ticket_job,
    vllm_settings,
    what_comes,
)
from ratchet.rl_coordinator.http.job_request import job_body, training_request
from ratchet.rl_coordinator.jobs.domain.requests import Abilities, problems
from tests.support.training import AMOUNTS

PLANS = pytest.mark.parametrize("plan", [DEMO, FULL, REAL], ids=["demo", "full", "real"])


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
    os.environ.update(deployer_environment(plan.world.role, plan.rollouts, Path("some where", "held_out.jsonl")))
    try:
        settings = Settings()
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert settings.stage_weights == tuple(weight / 100 for weight in plan.rollouts.stages)
    assert settings.heldout_tasks == plan.rollouts.heldout_tasks
    assert settings.horizon_s < plan.canary_deadline_s  # a trajectory without an end holds up no verdict for good
    assert settings.task_files == {"*": str(Path("some where", "held_out.jsonl").absolute())}
    assert settings.task_temperature == 1  # as agents sample


@PLANS
def test_the_first_policy_and_the_bad_one_imitate_different_clerks(plan: Plan) -> None:
    first, bad = (job["dataset"]["filter"] for job in (ticket_job(plan, "s3://ratchet/base.json"), bad_job(plan)))
    assert (first["task_domains"], bad["task_domains"]) == ([plan.world.domain], [plan.world.bad_domain])


@PLANS
def test_a_cycle_learns_from_as_many_trajectories_as_agents_play_before_it(plan: Plan) -> None:
    assert cycle_job(plan, 1)["dataset"]["sample_size"] == plan.tasks * plan.tries


def test_cycle_imitates_what_was_solved_and_the_full_demo_compares_tries() -> None:
    for imitates in (cycle_job(DEMO, 1), cycle_job(REAL, 1)):
        assert (imitates["algorithm"], imitates["dataset"]["filter"]["min_reward"]) == ("sft", 0.5)
    other = cycle_job(FULL, 1)
    assert (other["algorithm"], other["dataset"]["filter"].get("min_reward")) == ("rloo", None)


@PLANS
def test_plan_lists_acts_and_durations(plan: Plan) -> None:
    text = what_comes(plan)
    assert text.startswith(f"{plan.world.title}. {len(plan.acts)} acts, ")
    assert all(f"{act} (about {seconds} s)" in text for act, seconds in plan.acts)


def test_the_demo_is_shorter_than_the_full_one() -> None:
    whole, short = (sum(seconds for _, seconds in plan.acts) for plan in (FULL, DEMO))
    assert short <= 240 < whole


def test_a_shift_without_an_end_names_no_number_of_tasks() -> None:
    endless = Shift("http://127.0.0.1:1", seed=1, tries=4, agents=2)
    assert "--tasks" not in endless.command()
    assert Shift("http://127.0.0.1:1", seed=1, tries=4, agents=2, tasks=9).command()[-2:] == ["--tasks", "9"]


def test_the_real_demo_prints_what_a_run_took() -> None:
    took = REAL.takes
    assert took is not None
    assert min(took.minutes, took.memory_gb, took.disk_gb) > 0
    printed = notice(REAL, on_vllm=False)
    assert f"took {took.minutes} minutes on two quiet cores" in printed
    assert f"{took.memory_gb:g} GB of memory and {took.disk_gb:g} GB of disk" in printed
    assert "vLLM" not in printed
    assert "vLLM serves" in notice(REAL, on_vllm=True)
    assert "float32" not in printed
    assert "the run is in float32: " in notice(REAL_FLOAT32, on_vllm=False)
    assert "took" not in notice(replace(REAL, takes=None), on_vllm=False)


@pytest.mark.parametrize(("plan", "dtype"), [(REAL, "bfloat16"), (REAL_FLOAT32, "float32")])
def test_vllm_computes_as_the_trainer_does_and_takes_adapters_of_every_job(plan: Plan, dtype: str) -> None:
    vllm = vllm_settings(plan, Path("bin", "python"), Path("model"))
    assert vllm.dtype == dtype
    for body in (ticket_job(plan, "base"), cycle_job(plan, 1)):
        assert body["hyperparameters"]["lora"]["r"] <= vllm.max_rank
        assert body["compute"]["mixed_precision"] == {"bfloat16": "bf16", "float32": "fp32"}[dtype]
    assert "lora" not in bad_job(plan)["hyperparameters"]  # it goes on with the adapter of the policy that serves
    assert plan.world.max_tokens < CONTEXT


def test_the_first_real_policy_sees_every_logged_message_once() -> None:
    for recipe in (REAL.tickets, REAL.bad):
        assert recipe.steps * recipe.batch == recipe.examples
