"""A world of eight workers and five benchmarks, whose success, cost and latency by task type no planner sees.

It makes executions as the service logs them, and knows the true value of any selector. All chance is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from zlib import crc32

import numpy as np

from ratchet.bus.message import named_id
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.workflows import (
    TASK_TYPES,
    Plan,
    SubTask,
    SubTaskRun,
    Worker,
    WorkerMeasures,
    WorkflowExecution,
)
from ratchet.core.planning.base import Choice, Planner
from ratchet.core.planning.logged import options_of
from ratchet.core.planning.plans import sinks
from ratchet.core.planning.rewards import decision_reward

ALL = TASK_TYPES


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a worker is like. Success is `skill` of what it is made for, `other` elsewhere, less for what is complex."""

    worker: Worker
    skill: float
    other: float
    made_for: tuple[str, ...]
    tokens: float = 3000.0
    """Of a sub-task of middling complexity."""


def _hidden(name: str, kind: str, figures: tuple[float, float, float, float], made_for: str, also: str = "") -> Hidden:
    price, latency_ms, skill, other = figures
    types = tuple(made_for.split())
    worker = Worker(
        name=name,
        model_type=kind,
        capabilities=ALL if kind == "llm" else types + tuple(also.split()),
        model=f"simulated/{name}",
        cost_per_token=price,
        latency_ms=latency_ms,
    )
    return Hidden(worker, skill, other, types)


WORKERS = (
    _hidden("llm-large", "llm", (6e-5, 9000, 0.985, 0.96), "generation analysis planning translation"),
    _hidden("llm-medium", "llm", (1.2e-5, 4000, 0.97, 0.90), "generation summarization planning"),
    _hidden("llm-small", "llm", (2e-6, 1200, 0.95, 0.75), "summarization classification"),
    _hidden("vision", "vision", (1.5e-5, 5000, 0.985, 0.7), "visualization text_extraction", "classification analysis"),
    _hidden("audio", "audio", (8e-6, 6000, 0.985, 0.75), "transcription", "translation"),
    _hidden("coder", "code", (1e-5, 3500, 0.985, 0.8), "code", "visualization analysis"),
    _hidden(
        "document", "document", (4e-6, 2500, 0.985, 0.8), "text_extraction translation", "summarization classification"
    ),
    _hidden("data", "data", (5e-6, 2000, 0.985, 0.8), "analysis classification", "visualization"),
)
"""A workflow costs cents with `llm-small`, and near a dollar with `llm-large`, the best one that can do everything."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A kind of workflow: what has to be done for it, and how people ask for it."""

    name: str
    steps: tuple[tuple[str, tuple[int, ...], float], ...]
    """Task type, what it depends on, complexity."""
    templates: tuple[str, ...]
    """`{}` is a subject."""
    held_out: tuple[str, ...]
    """Asked in tests alone."""


BENCHMARKS = (
    Benchmark(
        "presentation_generation",
        (("planning", (), 0.4), ("generation", (0,), 0.6), ("visualization", (0,), 0.5), ("generation", (1, 2), 0.3)),
        (
            "Make a presentation about {} with charts on the slides.",
            "Prepare a slide deck on {} for the board, charts included.",
            "Build slides that present {} to customers.",
            "Create a presentation of {} with ten slides and figures.",
        ),
        (
            "I need a slide deck with charts that presents {}.",
            "Please draft presentation slides about {}, with figures.",
        ),
    ),
    Benchmark(
        "data_analysis",
        (("text_extraction", (), 0.3), ("code", (0,), 0.6), ("analysis", (1,), 0.6), ("visualization", (2,), 0.4)),
        (
            "Analyse the data on {} and plot the trend.",
            "Compute statistics of the table about {} and chart them.",
            "Find out from the spreadsheet of {} what drives the numbers, with a plot.",
            "Run an analysis of the dataset {} and show it in a chart.",
        ),
        (
            "Take the spreadsheet on {} and give me statistics and a plot.",
            "Analyse the numbers of {} in the table, then chart them.",
        ),
    ),
    Benchmark(
        "content_summarization",
        (("text_extraction", (), 0.2), ("summarization", (0,), 0.3), ("translation", (1,), 0.4)),
        (
            "Summarise the article about {} and translate the summary into French.",
            "Give a short summary in German of the text on {}.",
            "Condense the report on {} into five sentences, in Spanish.",
            "Write an abstract of the paper about {} and translate it.",
        ),
        (
            "Condense the article on {}, then translate the abstract into Italian.",
            "A short summary of the text about {} in French, please.",
        ),
    ),
    Benchmark(
        "document_processing",
        (("text_extraction", (), 0.4), ("classification", (0,), 0.3), ("summarization", (0,), 0.3)),
        (
            "Extract the fields of the scanned forms about {} and classify them.",
            "Read the invoices for {} and sort them by kind, with a digest.",
            "Process the contracts on {}: extract, label and summarise.",
            "Sort the scanned letters about {} into categories and note the key points.",
        ),
        (
            "Read the scanned contracts about {}, label them and note key points.",
            "Classify the invoices on {} and extract their fields.",
        ),
    ),
    Benchmark(
        "multimodal_creation",
        (
            ("transcription", (), 0.4),
            ("summarization", (0,), 0.3),
            ("generation", (1,), 0.6),
            ("visualization", (1,), 0.6),
        ),
        (
            "Turn the recording about {} into an illustrated post.",
            "Transcribe the interview on {} and make an article with pictures.",
            "Make a blog entry with images from the podcast on {}.",
            "Create an illustrated story from the audio of {}.",
        ),
        (
            "From the recorded interview about {}, make an illustrated article.",
            "Transcribe the podcast on {} and write a post with images.",
        ),
    ),
)
SUBJECTS = (
    *("solar panels", "the new office", "bicycle sales", "school meals", "river levels", "night trains", "old bridges"),
    *("cheese exports", "the spring campaign", "heart rates", "parking fees", "bird counts", "rental prices", "tides"),
    *("hotel reviews", "vaccination", "the merger", "wind turbines", "library loans", "street lights", "coffee prices"),
)
OUTAGE_SHARE, OUTAGE_SPAN = 0.02, 10
"""Of all spans of so many workflows, the share in which a worker is out: it fails at once and costs nothing."""
OUT_MS = 50.0
"""After which a worker that is out fails."""
PRICE_SPAN, PRICE_CHANGE = 400, 0.15
"""Prices change every so many workflows, by this standard deviation of their logarithm."""
NEEDS_MISSED = 0.5
"""What the success of a workflow is multiplied by for each kind of step that its plan lacks."""
LOYALTY = 0.7
"""Share of a user's tasks that are of the same benchmark."""
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Task:
    """What a user asks for."""

    benchmark: Benchmark
    instruction: str


@dataclass(slots=True)
class World:
    """The workers at one seed: what is measured of them grows while workflows are played."""

    seed: int
    role: str = "planner"
    number: int = 0
    """Workflows played so far: outages and prices follow it."""
    counts: dict[str, tuple[int, int, float, float]] = field(default_factory=dict[str, tuple[int, int, float, float]])
    """Calls, successes, sum of costs, sum of latencies of each worker."""

    def task(self, random: np.random.Generator, held_out: bool = False, user: str | None = None) -> Task:
        """Any benchmark's; a user mostly asks for the same one."""
        benchmark = BENCHMARKS[int(random.integers(len(BENCHMARKS)))]
        if user is not None and random.random() < LOYALTY:
            benchmark = BENCHMARKS[crc32(user.encode()) % len(BENCHMARKS)]
        templates = benchmark.held_out if held_out else benchmark.templates
        subject = SUBJECTS[int(random.integers(len(SUBJECTS)))]
        return Task(benchmark, templates[int(random.integers(len(templates)))].format(subject))

    def workers(self) -> list[Worker]:
        """The registry as it stands, by name, prices of the day and measured latencies in it."""
        return sorted((self._today(hidden) for hidden in WORKERS), key=lambda worker: worker.name)

    def _today(self, hidden: Hidden) -> Worker:
        worker = hidden.worker
        calls, _, _, latency = self.counts.get(worker.name, (0, 0, 0.0, 0.0))
        price = worker.cost_per_token * _price(self.seed, worker.name, self.number // PRICE_SPAN)
        return Worker(
            name=worker.name,
            model_type=worker.model_type,
            capabilities=worker.capabilities,
            model=worker.model,
            cost_per_token=price,
            latency_ms=latency / calls if calls else worker.latency_ms,
        )

    def out(self, name: str) -> bool:
        """Whether a worker is out just now."""
        return _is_out(self.seed, name, self.number // OUTAGE_SPAN)

    def measured(self, worker: Worker) -> WorkerMeasures | None:
        """What is known of a worker's calls."""
        calls, succeeded, cost, latency = self.counts.get(worker.name, (0, 0, 0.0, 0.0))
        if not calls:
            return None
        return WorkerMeasures(calls=calls, success=succeeded / calls, cost_usd=cost / calls, latency_ms=latency / calls)

    def choice(self, instruction: str, plan: Plan, index: int) -> Choice:
        """What a selector is asked."""
        kind = plan.sub_tasks[index].task_type
        workers = [worker for worker in self.workers() if kind in worker.capabilities]
        return Choice(instruction, plan, index, workers, [self.measured(worker) for worker in workers])

    def success_of(self, worker: str, task: SubTask) -> float:
        """The hidden probability, outages aside."""
        hidden = next(hidden for hidden in WORKERS if hidden.worker.name == worker)
        skill = hidden.skill if task.task_type in hidden.made_for else hidden.other
        return skill * (1.0 - 0.06 * task.complexity)

    def expected_reward(self, worker: Worker, task: SubTask) -> float:
        """The true mean of `decision_reward` just now: neither cost nor latency meets its bound."""
        if self.out(worker.name):
            return decision_reward(False, 0.0, OUT_MS)
        cost, latency = self.means(worker.name, task)
        base = next(hidden.worker for hidden in WORKERS if hidden.worker.name == worker.name)
        cost *= worker.cost_per_token / base.cost_per_token
        success = self.success_of(worker.name, task)
        gained, nothing = decision_reward(True, 0.0, 0.0), decision_reward(False, cost, latency)
        return success * gained + nothing

    def means(self, worker: str, task: SubTask) -> tuple[float, float]:
        """Mean cost at the first day's price, and mean latency."""
        hidden = next(hidden for hidden in WORKERS if hidden.worker.name == worker)
        size = 0.5 + task.complexity
        return hidden.tokens * size * hidden.worker.cost_per_token, hidden.worker.latency_ms * size

    def play(
        self, planner: Planner, task: Task, random: np.random.Generator, user: str | None = None
    ) -> WorkflowExecution:
        """One workflow, as the service would log it."""
        plan = planner.plan(task.instruction)
        runs: list[SubTaskRun] = []
        ends: list[float] = []
        for index, part in enumerate(plan.sub_tasks):
            begin = max((ends[other] for other in part.depends_on), default=0.0)
            if any(runs[other].status != "succeeded" for other in part.depends_on):
                runs.append(SubTaskRun(status="skipped", error="a sub-task that it depends on failed"))
            else:
                runs.append(self._run(planner, self.choice(task.instruction, plan, index), random))
            ends.append(begin + runs[-1].latency_ms)
        good = [runs[index].status == "succeeded" for index in sinks(plan)]
        missing = len({step[0] for step in task.benchmark.steps} - {part.task_type for part in plan.sub_tasks})
        success = all(good) and bool(random.random() < NEEDS_MISSED**missing)
        self.number += 1
        started = START + timedelta(seconds=60 * self.number)
        return WorkflowExecution(
            workflow_id=named_id("simulated", self.seed, self.number, float(random.random())),
            timestamp=started + timedelta(milliseconds=max(ends)),
            started_at=started,
            role=self.role,
            policy=PolicyClaim(role=self.role, version=0, digest="", arm="stable", weight=0.0),
            instruction=task.instruction,
            plan=plan,
            runs=tuple(runs),
            status="succeeded" if success else "partial" if any(good) else "failed",
            success=success,
            cost_usd=sum(run.cost_usd for run in runs),
            latency_ms=max(ends),
            user_ref=user,
        )

    def _run(self, planner: Planner, choice: Choice, random: np.random.Generator) -> SubTaskRun:
        propensities = planner.propensities(choice)
        chosen = int(random.choice(len(propensities), p=np.array(propensities) / sum(propensities)))
        worker, part = choice.workers[chosen], choice.sub_task
        options = options_of(choice, propensities)
        success, cost, latency = self._call(worker, part, random)
        calls, succeeded, costs, latencies = self.counts.get(worker.name, (0, 0, 0.0, 0.0))
        self.counts[worker.name] = (calls + 1, succeeded + success, costs + cost, latencies + latency)
        return SubTaskRun(
            status="succeeded" if success else "failed",
            options=options,
            worker=worker.name,
            propensity=propensities[chosen],
            cost_usd=cost,
            latency_ms=latency,
            error=None if success else "it did not do what was asked",
        )

    def _call(self, worker: Worker, part: SubTask, random: np.random.Generator) -> tuple[bool, float, float]:
        if self.out(worker.name):
            return False, 0.0, OUT_MS
        cost, latency = self.means(worker.name, part)
        base = next(hidden.worker for hidden in WORKERS if hidden.worker.name == worker.name)
        noise = np.exp(0.3 * random.standard_normal(2) - 0.045)  # with the mean 1
        success = bool(random.random() < self.success_of(worker.name, part))
        price = worker.cost_per_token / base.cost_per_token
        return success, cost * price * float(noise[0]), latency * float(noise[1])


@cache
def _price(seed: int, name: str, changes: int) -> float:
    random = np.random.default_rng([seed, crc32(name.encode()), 1])
    return math.exp(PRICE_CHANGE * float(random.standard_normal(changes).sum()))


@cache
def _is_out(seed: int, name: str, span: int) -> bool:
    return bool(np.random.default_rng([seed, crc32(name.encode()), 2, span]).random() < OUTAGE_SHARE)


class Teacher:
    """The true plan of each benchmark, and any capable worker: no model has a part in it."""

    task_types = TASK_TYPES

    def plan(self, instruction: str) -> Plan:
        """Of the benchmark whose template the instruction follows; one step where it follows none."""
        for benchmark in BENCHMARKS:
            for template in benchmark.templates + benchmark.held_out:
                before, _, after = template.partition("{}")
                if instruction.startswith(before) and instruction.endswith(after):
                    return true_plan(benchmark, instruction)
        return Plan(sub_tasks=(SubTask(task_type="generation", instruction=instruction),), made_by="llm")

    def propensities(self, choice: Choice) -> list[float]:
        """The same of each."""
        return [1.0 / len(choice.workers)] * len(choice.workers)


def true_plan(benchmark: Benchmark, instruction: str) -> Plan:
    """What it needs."""
    return Plan(
        sub_tasks=tuple(
            SubTask(task_type=kind, instruction=instruction, depends_on=before, complexity=complexity)
            for kind, before, complexity in benchmark.steps
        ),
        made_by="llm",
    )


def play_many(
    world: World, planner: Planner, count: int, seed: int, held_out: bool = False, users: Sequence[str] = ()
) -> list[WorkflowExecution]:
    """So many workflows, one after the other."""
    random = np.random.default_rng([world.seed, seed])
    rows: list[WorkflowExecution] = []
    for _ in range(count):
        user = users[int(random.integers(len(users)))] if users else None
        rows.append(world.play(planner, world.task(random, held_out, user), random, user))
    return rows
