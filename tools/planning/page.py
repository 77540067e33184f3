"""The page of the planning report: tables of what was measured, and which targets were met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.core.planning.base import FLOOR
from ratchet.core.planning.off_policy import Estimate, Judgement
from ratchet.core.rules.intervals import mean_interval, wilson

Floats = NDArray[Any]
NEWLINE = "\n"  # which no expression of an f-string may hold before Python 3.12
BEST, UNFLOORED = "best single worker (llm-large)", "best single worker, without the floor"
LOGGED, ONLINE, FIRST, LINUCB = "phase 2, from logs", "phase 2, on-policy", "phase 1", "LinUCB"
DEFAULTS = "defaults"
BASELINES = ("random", "cheapest", "fixed (llm-medium)")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a planner's workflows were like, one number each."""

    rewards: Floats
    successes: Floats
    costs: Floats
    latencies: Floats


@dataclass(frozen=True, slots=True)
class Phase1:
    """What supervised training learned."""

    exact: tuple[bool, ...]
    """Of each held-out wording: whether its plan has the same types and dependencies as the benchmark's."""
    confidence: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Seed:
    """One seed."""

    seed: int
    first: Mapping[str, Phase1]
    """By what it was trained with."""
    measured: Mapping[str, Measured]
    judged: Mapping[str, Judgement]


@dataclass(frozen=True, slots=True)
class CoverageResult:
    """How often intervals held the truth."""

    truth: float
    decisions: int
    runs: int
    refused: int
    hits: Mapping[str, int]
    widths: Mapping[str, float]


def page(seeds: Sequence[Seed], covered: CoverageResult, sizes: Mapping[str, int], seconds: float) -> str:
    """All of it, as Markdown."""
    parts = [
        _introduction(seeds, sizes, seconds),
        _targets(seeds, covered),
        _phase_1(seeds),
        _planners(seeds),
        _judgements(seeds),
        _coverage(covered),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(seeds: Sequence[Seed], sizes: Mapping[str, int], seconds: float) -> str:
    minutes = f"{seconds / 60:.0f} minutes"
    logged, played, online = (f"{sizes[name]:,}" for name in ("logged", "played", "on_policy"))
    return f"""# What planners of workflows learn

Made by `python -m tools.planning.report`, in {minutes} on one core, all seeds together. The world is the
[simulator](../services/ratchet/core/planning/simulator.py): eight workers of six model types, five benchmarks, noise,
outages and price changes. Which worker does what how well is hidden from planners. No figure here is of a language
model or of real work: the page shows that the algorithms learn what is there to be learnt, and what the floor costs.

Each of {len(seeds)} seeds has a world, logs and trainings of its own. Phase 1 learns from {logged} executions whose
plans are right and whose workers are drawn evenly; phase 2, LinUCB and Thompson sampling from {logged} that the planner
of phase 1 made, or phase 2 on-policy from {online}. From the test part of a log, 15 %, none learns. Every planner then
plays {played} workflows of wordings that no training has seen, in a world of another seed. All trainings are those of
jobs that name no hyperparameter: what `ratchet workflows train` does; on-policy, which no job can do, has the same
ones. The learning rate is 1e-3 in both phases; a row below shows phase 2 with 3e-5 and as many rounds.

All are measured **as they are served**: with the floor, which gives each capable worker {FLOOR:.0%} of the choices, so
that logs can judge the next planner. Among five workers, 8 % of the choices are then not the selector's best. The
reward is 10 x success - .1 x cost - .01 x latency + .1 x successful sub-tasks, in the units of the reward component
`cost_latency`. ± is the half of a 95 % interval, over the workflows of all seeds. Selectors that are simpler than PPO
stand beside it: where they are as good, they are what to serve."""


def _targets(seeds: Sequence[Seed], covered: CoverageResult) -> str:
    rows = [_first_target(seeds), *_gains(seeds), *_savings(seeds), _covered_target(covered), _refused_target(seeds)]
    lines = [f"| {name} | {figure} | {verdict} |" for name, figure, verdict in rows]
    return "\n".join(["## Targets", "", "| target | measured | |", "|---|---|---|", *lines])


Target = tuple[str, str, str]
"""What it is, what was measured, and whether that meets it."""


def _verdict(mean: bool, interval: bool) -> str:
    """By whether the mean meets a target, and whether all of the interval does."""
    if mean and not interval:
        return "met by the mean, **not shown**: a part of the interval is beyond it"
    return "met" if mean else "**missed**"


def _first_target(seeds: Sequence[Seed]) -> Target:
    exact = np.array([seed.first[DEFAULTS].exact for seed in seeds], float)
    shares = exact.mean(axis=0)  # of each wording: seeds that ask the same one are not independent
    low, high = shares.mean() - _half(shares), min(1.0, shares.mean() + _half(shares))
    name = "phase 1 plans wordings that it has not seen better than the most frequent plan, 20 %"
    figure = f"{exact.sum():.0f} of {exact.size} plans exact, {low:.0%} to {high:.0%} over {len(shares)} wordings"
    return name, figure, _verdict(shares.mean() > 0.2, low > 0.2)


def _gains(seeds: Sequence[Seed]) -> list[Target]:
    result: list[Target] = []
    for mine in (LOGGED, ONLINE):
        for other in (FIRST, *BASELINES, BEST):
            mean, half = _difference(seeds, mine, other, "rewards")
            verdict = _verdict(mean > 0, mean - half > 0)
            result.append((f"{mine}: reward over {other}", f"{mean:+.2f} ± {half:.2f}", verdict))
    return result


def _savings(seeds: Sequence[Seed]) -> list[Target]:
    return [_saving(seeds, mine, best) for mine in (LOGGED, LINUCB) for best in (BEST, UNFLOORED)]


def _saving(seeds: Sequence[Seed], mine: str, best: str) -> Target:
    success, half = _difference(seeds, mine, best, "successes")
    cost = _pooled(seeds, mine, "costs").mean() / _pooled(seeds, best, "costs").mean() - 1
    figure = f"success {100 * success:+.1f} ± {100 * half:.1f} points, cost {cost:+.0%}"
    met = success > -0.02 and cost < -0.15
    return f"{mine}: success within 2 points of the {best}, 15 % cheaper", figure, _verdict(met, success - half > -0.02)


def _covered_target(covered: CoverageResult) -> Target:
    judged = covered.runs - covered.refused
    low, high = wilson(covered.hits["doubly_robust"], judged)
    share = covered.hits["doubly_robust"] / max(1, judged)
    name = f"the doubly robust interval holds the truth in 93 % of {covered.runs:,} runs"
    return name, f"{share:.1%} ({low:.1%} to {high:.1%})", _verdict(share >= 0.93, low >= 0.93)


def _refused_target(seeds: Sequence[Seed]) -> Target:
    worse = [seed.judged["trained on outcomes turned round"].difference for seed in seeds]
    refused = sum(difference is not None and difference.high < 0 for difference in worse)
    every = refused == len(worse)
    return "a worse planner is refused by the log of stable", f"{refused} of {len(worse)}", _verdict(every, every)


def _phase_1(seeds: Sequence[Seed]) -> str:
    lines = [_phase_1_line(seed.seed, kind, first) for seed in seeds for kind, first in seed.first.items()]
    return f"""## Phase 1, and what its parts add

Types, stop, dependencies and selection are of the test part: executions of wordings that training has seen, by which no
epoch was chosen. `exact` counts plans of held-out wordings with the sub-tasks and dependencies of the benchmark,
whatever the order of independent ones; each seed asks the same wordings. The penalty is tr(exp(A o A)) - n of the
unmasked adjacency, before decoding masks it to earlier sub-tasks. Variants are copies of the train part in another
order or with another capable worker (`core.planning.dataset`), one of each execution where it has one.

| seed | trained with | exact | confidence | types | stop | dependencies, F1 | selection | acyclicity | epochs |
|---|---|---|---|---|---|---|---|---|---|
{NEWLINE.join(lines)}

The choices that selection imitates were drawn evenly from capable workers, so that it cannot be right much more often
than a draw: phase 2 learns it. A variant makes two orders of independent sub-tasks as right as each other, so that
types are guessed and the confidence is lower there.

{_penalty_words(seeds)}"""


def _phase_1_line(seed: int, kind: str, first: Phase1) -> str:
    metrics = first.metrics
    shares = [
        metrics[f"test_{name}"] for name in ("type_accuracy", "stop_accuracy", "dependency_f1", "selection_accuracy")
    ]
    figures = [
        f"{sum(first.exact)} of {len(first.exact)}",
        f"{first.confidence:.2f}",
        *(f"{share:.3f}" for share in shares),
        f"{metrics['test_acyclicity']:.1e}",
        f"{metrics['epochs']:.0f}",
    ]
    return f"| {seed} | {kind} | {' | '.join(figures)} |"


def _penalty_words(seeds: Sequence[Seed]) -> str:
    pairs = [(seed.first[DEFAULTS].metrics, seed.first["no penalty"].metrics) for seed in seeds]
    f1 = [mine["test_dependency_f1"] - other["test_dependency_f1"] for mine, other in pairs]
    with_it, without = (max(pair[index]["test_acyclicity"] for pair in pairs) for index in (0, 1))
    return f"""The penalty changed the F1 of dependencies by {min(f1):+.3f} to {max(f1):+.3f}. What is left of cycles is
{with_it:.0e} at most with it, and {without:.0e} without: where both are below 1e-6, the penalty adds nothing. Plans are
DAGs either way: decoding masks them, and the loss of dependencies, which is over every ordered pair, already pushes
pairs that lead forward to 0."""


def _planners(seeds: Sequence[Seed]) -> str:
    lines = [_line(seeds, name) for name in seeds[0].measured]
    return f"""## All planners

| planner | reward | by seed | success | cost, $ | latency, s | cost per success, $ |
|---|---|---|---|---|---|---|
{NEWLINE.join(lines)}"""


def _line(seeds: Sequence[Seed], name: str) -> str:
    rewards, successes = _pooled(seeds, name, "rewards"), _pooled(seeds, name, "successes")
    costs, latencies = _pooled(seeds, name, "costs"), _pooled(seeds, name, "latencies")
    figures = [
        f"{rewards.mean():.2f} ± {_half(rewards):.2f}",
        ", ".join(f"{seed.measured[name].rewards.mean():.2f}" for seed in seeds),
        f"{successes.mean():.1%} ± {_half(successes):.1%}",
        f"{costs.mean():.3f}",
        f"{latencies.mean() / 1000:.1f}",
        f"{costs.sum() / max(1.0, successes.sum()):.3f}",
    ]
    return f"| {name} | {' | '.join(figures)} |"


def _judgements(seeds: Sequence[Seed]) -> str:
    lines = [_judged(seed.seed, name, judged) for seed in seeds for name, judged in seed.judged.items()]
    return f"""## Judged by the log of stable

Stable is the planner of phase 1, with 600 new executions; below each seed, the test part of the log that
phase 2 learned from, which it has not seen. Values are rewards of a decision: of a sub-task by itself.

| seed | candidate | effective sample size | SNIPS | doubly robust | less stable |
|---|---|---|---|---|---|
{NEWLINE.join(lines)}"""


def _judged(seed: int, name: str, judged: Judgement) -> str:
    if judged.refusal is not None:
        return f"| {seed} | {name} | {judged.effective_sample_size:.0f} | not judged: {judged.refusal} | | |"
    estimates = [_estimate(judged.snips), _estimate(judged.doubly_robust), _estimate(judged.difference)]
    size = f"{judged.effective_sample_size:.0f} of {judged.decisions}"
    return f"| {seed} | {name} | {size} | {' | '.join(estimates)} |"


def _coverage(covered: CoverageResult) -> str:
    judged = covered.runs - covered.refused
    lines = [
        f"| {name.replace('_', ' ')} | {hits / max(1, judged):.1%} | {covered.widths[name]:.3f} |"
        for name, hits in covered.hits.items()
    ]
    return f"""## How often an interval holds the truth

Phase 2 of seed 1 on the log of phase 1. The simulator's truth is {covered.truth:.3f}, the mean over
{covered.decisions:,} logged decisions. Each of {covered.runs:,} runs draws 75 of 4,000 users with all their executions,
about 300; runs share a pool of 16,000 executions. {covered.refused} runs refused to judge. Users mostly ask for the
same benchmark, so that their executions belong together.

| estimator | holds the truth | mean width |
|---|---|---|
{NEWLINE.join(lines)}"""


def _estimate(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _pooled(seeds: Sequence[Seed], name: str, figure: str) -> Floats:
    return np.concatenate([getattr(seed.measured[name], figure) for seed in seeds])


def _half(values: Floats) -> float:
    interval = mean_interval(float(values.mean()), float(values.var(ddof=1)), len(values))
    return (interval[1] - interval[0]) / 2 if interval else float("nan")


def _difference(seeds: Sequence[Seed], mine: str, other: str, figure: str) -> tuple[float, float]:
    """Of independent workflows: the halves of both intervals add up as squares."""
    ours, theirs = _pooled(seeds, mine, figure), _pooled(seeds, other, figure)
    return float(ours.mean() - theirs.mean()), float(np.hypot(_half(ours), _half(theirs)))
