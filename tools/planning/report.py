"""The planning report: `python -m tools.planning.report` trains planners in the simulator and writes docs/planning.md.

Three seeds, each with a world, logs and trainings of its own; minutes on one core. Every figure of the page is measured
by this run, and a target that it missed is listed as missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.core.contract.training import Hyperparameters
from ratchet.core.contract.workflows import Plan, WorkflowExecution
from ratchet.core.planning import off_policy
from ratchet.core.planning.base import Choice, Planner
from ratchet.core.planning.baselines import WithRule, always, at_random, cheapest
from ratchet.core.planning.files import THOMPSON, load_planner
from ratchet.core.planning.learned import LearnedPlanner
from ratchet.core.planning.plans import check_plan
from ratchet.core.planning.rewards import workflow_reward
from ratchet.core.planning.simulator import BENCHMARKS, Teacher, World, play_many, true_plan
from ratchet.trainer_worker.training.planning import algorithms, bandits, policy_gradient, supervised
from ratchet.trainer_worker.training.planning.base import Trained
from tools.planning.page import (
    BEST,
    DEFAULTS,
    FIRST,
    LINUCB,
    LOGGED,
    ONLINE,
    UNFLOORED,
    CoverageResult,
    Measured,
    Phase1,
    Seed,
    page,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "planning.md"
SEEDS = (1, 2, 3)
EXECUTIONS, PLAYED = 1500, 2000
"""Executions that each training has, and that each planner is measured by."""
ON_POLICY = policy_gradient.PolicyGradient()
ON_POLICY_PLAYED = 200
"""In each round."""
RUNS, POOL, USERS, USERS_OF_RUN = 1000, 16_000, 4000, 75


def measure(planner: Planner, seed: int, held_out: bool = True) -> list[WorkflowExecution]:
    """Workflows of held-out instructions, in a world that no training has seen."""
    return play_many(World(1000 + seed), planner, PLAYED, 77, held_out)


def phase_1(log: Sequence[WorkflowExecution], seed: int) -> tuple[dict[str, Phase1], bytes]:
    """As a job trains that names no hyperparameter, and what each part of that changes; the planner is the first."""
    job = algorithms.planner_supervised(log, None, Hyperparameters(seed=seed), _quiet)
    others = {
        "no penalty": supervised.Supervised(acyclicity=0.0),
        "no variants": supervised.Supervised(variants=0),
    }
    trained = {DEFAULTS: job} | {
        name: supervised.train(log, None, options, seed, _quiet) for name, options in others.items()
    }
    return {name: _phase_1(planner) for name, planner in trained.items()}, job.blob


def _phase_1(trained: Trained) -> Phase1:
    planner = load_planner(trained.blob)
    exact: list[bool] = []
    confidences: list[float] = []
    for benchmark in BENCHMARKS:
        for template in benchmark.held_out:
            instruction = template.format("the harbour of Kiel")
            plan = planner.plan(instruction)
            check_plan(plan)
            exact.append(_shape(plan) == _shape(true_plan(benchmark, instruction)))
            confidences.append(plan.confidence)
    return Phase1(tuple(exact), float(np.mean(confidences)), trained.metrics)


def _shape(plan: Plan) -> list[str]:
    """Each sub-task with all that it waits for: the same for plans that differ in the order of independent ones."""
    shapes: list[str] = []
    for task in plan.sub_tasks:
        shapes.append(f"{task.task_type}({', '.join(sorted(shapes[other] for other in task.depends_on))})")
    return sorted(shapes)


def run_seed(seed: int) -> tuple[Seed, LearnedPlanner, LearnedPlanner]:
    """All trainings and measurements of a seed; also the planners of phases 1 and 2."""
    first, blob = phase_1(play_many(World(seed), Teacher(), EXECUTIONS, 1), seed)
    begun = load_planner(blob)
    world = World(100 + seed)
    log = play_many(world, WithRule(begun), EXECUTIONS, 2)
    planners = {name: load_planner(trained.blob) for name, trained in phase_2(log, world, blob, seed).items()}
    rules: Mapping[str, Planner] = {
        "random": WithRule(begun, at_random),
        "cheapest": WithRule(begun, cheapest),
        "fixed (llm-medium)": WithRule(begun, always("llm-medium")),
        BEST: WithRule(begun, always("llm-large")),
        UNFLOORED: WithRule(begun, always("llm-large"), floor=False),
        "true plans, random workers": Teacher(),
        FIRST: WithRule(begun),
    }
    served = {**rules, **{name: WithRule(planner) for name, planner in planners.items()}}
    measured = {name: _measured(measure(planner, seed)) for name, planner in served.items()}
    worse = load_planner(bandits.train(THOMPSON, [_flipped(row) for row in log], blob).blob)
    fresh = play_many(World(200 + seed), WithRule(begun), 600, 5)
    judged = {
        "phase 2": off_policy.judge(fresh, planners[LOGGED]),
        "trained on outcomes turned round": off_policy.judge(fresh, worse),
        "phase 2, by the test part of its own log": off_policy.judge(log, planners[LOGGED]),
    }
    return Seed(seed, first, measured, judged), begun, planners[LOGGED]


def phase_2(log: Sequence[WorkflowExecution], world: World, blob: bytes, seed: int) -> dict[str, Trained]:
    """As jobs train that name no hyperparameter; with the rate of the literature; and on-policy, which no job does."""
    rounds = iter(range(10, 1000))
    slow = Hyperparameters(seed=seed, learning_rate=3e-5)
    return {
        LOGGED: algorithms.planner_ppo(log, blob, Hyperparameters(seed=seed), _quiet),
        f"{LOGGED}, learning rate 3e-5": algorithms.planner_ppo(log, blob, slow, _quiet),
        ONLINE: policy_gradient.train_on_policy(
            lambda planner: play_many(world, WithRule(planner), ON_POLICY_PLAYED, next(rounds)),
            blob,
            ON_POLICY,
            seed,
            _quiet,
        ),
        LINUCB: algorithms.selector_linucb(log, blob, Hyperparameters(), _quiet),
        "Thompson sampling": algorithms.selector_thompson(log, blob, Hyperparameters(), _quiet),
    }


def _measured(rows: Sequence[WorkflowExecution]) -> Measured:
    return Measured(
        np.array([workflow_reward(row) for row in rows]),
        np.array([row.success for row in rows], float),
        np.array([row.cost_usd for row in rows]),
        np.array([row.latency_ms for row in rows]),
    )


def _flipped(row: WorkflowExecution) -> WorkflowExecution:
    turned = {"succeeded": "failed", "failed": "succeeded"}
    runs = tuple(msgspec.structs.replace(run, status=turned.get(run.status, run.status)) for run in row.runs)
    return msgspec.structs.replace(row, runs=runs)


def coverage(stable: LearnedPlanner, candidate: LearnedPlanner) -> CoverageResult:
    """How often intervals hold the simulator's truth, in runs that each draw users of a pool of logged executions."""
    world, truths = World(999), list[float]()
    served = WithRule(stable)

    def recorded(choice: Choice) -> Sequence[float]:
        chances = candidate.propensities(choice)
        rewards = [world.expected_reward(worker, choice.sub_task) for worker in choice.workers]
        truths.append(float(np.dot(chances, rewards)))
        return served.propensities(choice)

    users = [f"user-{number}" for number in range(USERS)]
    rows = play_many(world, WithRule(stable, recorded, floor=False), POOL, 3, users=users)
    log = off_policy.read_log(rows, candidate)
    truth = float(np.mean(truths))
    random = np.random.default_rng(4)
    hits: dict[str, int] = {"ips": 0, "snips": 0, "doubly_robust": 0}
    widths: dict[str, list[float]] = {name: [] for name in hits}
    refused = 0
    for _ in range(RUNS):
        drawn = np.isin(log.subject_D, random.choice(log.subject_D.max() + 1, USERS_OF_RUN, replace=False))
        judged = off_policy.judge_log(_part(log, drawn), len(np.unique(log.workflow_D[drawn])))
        if judged.refusal:
            refused += 1
            continue
        for name in hits:
            estimate: off_policy.Estimate = getattr(judged, name)
            hits[name] += estimate.low <= truth <= estimate.high
            widths[name].append(estimate.high - estimate.low)
    mean_widths = {name: float(np.mean(width)) for name, width in widths.items()}
    return CoverageResult(truth, len(truths), RUNS, refused, hits, mean_widths)


def _part(log: off_policy.Log, drawn: NDArray[np.bool_]) -> off_policy.Log:
    return off_policy.Log(**{name: getattr(log, name)[drawn] for name in off_policy.Log.__slots__})


def _quiet(step: int, total: int, figures: Mapping[str, float]) -> None:
    """No report."""


def main(arguments: list[str]) -> int:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    begun = time.perf_counter()
    seeds: list[Seed] = []
    planners: list[tuple[LearnedPlanner, LearnedPlanner]] = []
    for number in SEEDS:
        seed, *pair = run_seed(number)
        seeds.append(seed)
        planners.append((pair[0], pair[1]))
        sys.stderr.write(f"seed {number}: {time.perf_counter() - begun:.0f} s\n")
    covered = coverage(*planners[0])
    seconds = time.perf_counter() - begun
    sizes = {"logged": EXECUTIONS, "played": PLAYED, "on_policy": ON_POLICY_PLAYED * ON_POLICY.rounds}
    options.page.write_text(page(seeds, covered, sizes, seconds))
    sys.stderr.write(f"{options.page} after {seconds:.0f} s\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
