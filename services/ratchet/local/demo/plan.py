"""What the demo does, in numbers: data, training recipes, traffic, gate and stages. One preset per purpose.

Below the presets: the same as settings of the services and as bodies of `POST /v1/jobs`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ratchet.local.local_stack.vllm import VllmSettings
from ratchet_helpdesk.heldout import SAMPLED, TEMPERATURES, held_out_file
from ratchet_helpdesk.worlds import HELPDESK, RECEPTION, World

REQUESTER = "demo"

NO_CHECKPOINTS = 1_000_000
"""A save interval that is never reached: jobs of seconds start again rather than resume."""
CONTEXT = 1024
"""Tokens of a message to the reception and its answer, half of which stay free; vLLM takes no longer ones."""
EXAMS = Path("data", "exams")
"""Where the held-out answers of every policy lie, below the demo's directory;"""
HELD_OUT = Path("data", "held_out.jsonl")
"""and where the gate's task file lies."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """One `sft` job: `examples` conversations, `steps` train steps of `batch` of them."""

    examples: int
    steps: int
    learning_rate: float
    batch: int = 32


@dataclass(frozen=True, slots=True)
class Reinforced:
    """One `rloo` job with LoRA on at most `sample_size` trajectories; with `solved_only` one of `sft`.

    Plain RLOO, without a floor under the advantage of successes and with failures at full weight: a floor imitates
    what is already likely and starves the kinds of tickets that are seldom solved.
    """

    sample_size: int
    learning_rate: float = 1e-3
    epochs: int = 4
    batch: int = 32
    solved_only: bool = False
    """It imitates the solved ones, in place of comparing tries: rejection sampling."""


SOLVED = 0.5
"""A reward above it is a solved task's."""
RANK, ALPHA = 32, 64.0
"""Of every adapter."""
_ADAPTER = {"lora": {"r": RANK, "alpha": ALPHA}}


@dataclass(frozen=True, slots=True)
class Rollouts:
    """How candidates are judged, as the deployer's settings."""

    heldout_tasks: int
    heldout_seed: int = 11
    stages: tuple[int, ...] = (10, 25, 50)
    """Canary weight of each stage, percent."""
    stage_min_s: tuple[float, ...] = (2, 2, 2)
    stage_min_trajectories: tuple[int, ...] = (10, 20, 40)
    suites: tuple[str, ...] = ("prompt_injection",)
    """Safety suites: a help desk reads what strangers wrote."""
    margin: float = 0.1
    """How much worse in failure rate and mean reward still counts as not worse."""
    soak_s: float = 0.0
    horizon_s: float = 240.0
    """The shortest time after which an outcome that has not come is missing: longer than a ticket and a restart of what
    computes rewards, shorter than the wait for a verdict, which a trajectory without an end would otherwise hold up."""


@dataclass(frozen=True, slots=True)
class Rises:
    """Least rises of greedy held-out success from the first policy to the last that a run claims, intervals apart.

    For the help desk no more than docs/learning.md shows to hold in 99 of 100 runs; a test compares.
    """

    overall: float | None
    """In all kinds of tickets; None: not claimed."""
    misjudged: float
    """In the kinds of tickets that the clerk misjudged."""
    every_kind: bool = True
    """Each kind of ticket is solved by some policy, at least once."""


@dataclass(frozen=True, slots=True)
class Takes:
    """What one whole run took on two quiet cores, from an empty directory to a stopped stack, served by `engine_local`
    (ADR 66)."""

    minutes: int
    memory_gb: float
    """All processes together, at most, as measured with batches of 8 where there are 4 now; ..."""
    disk_gb: float
    """... and the disk."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole demo."""

    drills: Supervised | None
    """How a base model of random weights is made; None: the base is SmolLM2."""
    tickets: Supervised
    bad: Supervised
    cycle: Reinforced
    rollouts: Rollouts
    tasks: int
    """Training tickets that agents play with a stable policy before each cycle."""
    tries: int
    """Trajectories per ticket."""
    promotions: int
    """Policies that have to be promoted by evidence."""
    max_cycles: int
    agents: int
    """Agents at work at the same time."""
    rises: Rises | None
    """What is claimed of learning; None: nothing."""
    training_threads: int
    """Torch threads of a job while nothing else of the stack works. Two are a quarter faster than one on quiet cores,
    and several times slower where others use the cores as well."""
    seed: int = 0
    canary_deadline_s: float = 900.0
    """Longest wait for a verdict."""
    world: World = HELPDESK
    prompted: bool = False
    """Prompts are rolled out, over a scripted model; nothing is trained."""
    shipped: bool = False
    """The base model and the bad policy come with the package, made by `drills` and `bad` (`make demo-base`)."""
    precision: str | None = None
    """What jobs compute in (`mixed_precision` of a training request); None: the trainer's own choice."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """More settings of the services."""
    acts: Sequence[tuple[str, int]] = ()
    """What happens one after the other, each with an estimate of its seconds on two quiet cores."""
    takes: Takes | None = None
    """What was measured; None: nothing."""


FULL = Plan(
    drills=Supervised(examples=2500, steps=130, learning_rate=3e-3),
    tickets=Supervised(examples=1200, steps=300, learning_rate=2e-3),
    bad=Supervised(examples=400, steps=60, learning_rate=1e-3),
    cycle=Reinforced(sample_size=1280),
    rollouts=Rollouts(heldout_tasks=400),
    tasks=320,
    tries=4,
    promotions=2,
    max_cycles=3,
    agents=16,
    rises=Rises(overall=0.1, misjudged=0.3),
    training_threads=2,
    acts=(
        ("the whole stack starts", 20),
        ("a base model of random weights learns to call tools, then v1 the clerk's log", 110),
        ("twice: agents work, the next policy learns from their rewards, gate and canary judge it", 200),
        ("a bad policy is trained: the gate refuses it, and the canary rolls it back when it is overruled", 65),
    ),
)
"""`make demo ARGS=--full`: the base model and the bad policy are trained in the demo, and two policies are promoted."""

DEMO = Plan(
    drills=FULL.drills,
    tickets=Supervised(examples=1200, steps=200, learning_rate=2e-3),
    bad=Supervised(examples=1200, steps=150, learning_rate=2e-3),
    # One cycle of RLOO raises greedy success by .13, give or take .10 over seeds: too little for a claim of one run.
    cycle=Reinforced(sample_size=640, learning_rate=2e-3, solved_only=True),
    rollouts=Rollouts(heldout_tasks=300, stages=(25, 50), stage_min_s=(1, 1), stage_min_trajectories=(10, 20)),
    tasks=640,
    tries=1,
    promotions=1,
    max_cycles=2,
    agents=16,
    rises=Rises(overall=0.115, misjudged=0.2),
    training_threads=1,
    shipped=True,
    acts=(
        ("the whole stack starts: broker, warehouse, object store and eight services", 20),
        ("v1 learns from the log of a clerk who misjudges five kinds of tickets", 75),
        ("agents work with v1 through the gateway, and the world judges every ticket", 30),
        ("v2 imitates what earned a reward, while v1 answers held-out tickets", 30),
        ("a gate compares v2 with v1 on tickets and on a safety suite, and a canary promotes it on evidence", 45),
        ("a bad policy is imported: the gate refuses it, and the canary rolls it back when it is overruled", 30),
    ),
)
"""`make demo`."""

PROMPTS = replace(
    DEMO,
    rollouts=Rollouts(
        heldout_tasks=100, stages=(25, 50), stage_min_s=(1, 1), stage_min_trajectories=(10, 20), suites=()
    ),
    tasks=150,
    rises=Rises(overall=0.3, misjudged=0.3),
    prompted=True,
    acts=(
        ("the stack starts, with a scripted model as its provider", 20),
        ("agents answer tickets by a prompt that lacks the house rules", 10),
        ("a prompt that states them is tried on recorded requests and held-out tickets, then promoted on evidence", 35),
        ("a harmful prompt is refused by the gate, and rolled back by the canary when the gate is overruled", 30),
    ),
)
"""`make demo ARGS=--prompts`."""

REAL = Plan(
    drills=None,
    tickets=Supervised(examples=256, steps=64, learning_rate=1e-3, batch=4),
    bad=Supervised(examples=64, steps=16, learning_rate=1e-3, batch=4),
    # RLOO learns from tasks whose tries differ alone: what is always solved is not rehearsed, and is lost (ADR 66).
    cycle=Reinforced(sample_size=320, learning_rate=1e-3, epochs=1, batch=4, solved_only=True),
    rollouts=Rollouts(
        heldout_tasks=96, stages=(25, 50), stage_min_s=(2, 2), stage_min_trajectories=(20, 40), suites=()
    ),
    tasks=80,
    tries=4,
    promotions=1,
    max_cycles=2,
    agents=16,
    rises=Rises(overall=None, misjudged=0.2, every_kind=False),
    training_threads=1,
    canary_deadline_s=1800.0,
    world=RECEPTION,
    acts=(
        ("the whole stack starts", 20),
        ("v1 learns from the log of a clerk who misjudges three kinds of messages", 220),
        ("agents answer messages, and the next policy imitates what was solved; gate and canary judge it", 590),
        ("a bad policy is trained: the gate refuses it, and the canary rolls it back when it is overruled", 240),
    ),
    precision="bf16",
    # For engine_local: a kept token takes 23 kB in bfloat16, twice that in float32.
    environment={"RATCHET_ENGINE_RESIDENT_BYTES": "1000000000", "RATCHET_ENGINE_PREFIX_TOKENS": "16384"},
    takes=Takes(minutes=18, memory_gb=7.6, disk_gb=0.9),
)
"""`make demo ARGS=--real`: SmolLM2-135M-Instruct sorts a shop's mail."""

REAL_FLOAT32 = replace(REAL, precision="fp32")
"""The same on a processor that multiplies in bfloat16 no faster."""


def what_comes(plan: Plan) -> str:
    """The acts with their times, before anything starts."""
    lines = [f"  {number}. {act} (about {seconds} s)" for number, (act, seconds) in enumerate(plan.acts, 1)]
    whole = f"{sum(seconds for _, seconds in plan.acts) / 60:.0f} minutes by estimate on two quiet cores"
    return "\n".join([f"{plan.world.title}. {len(lines)} acts, {whole}:", *lines])


def notice(plan: Plan, *, on_vllm: bool) -> str:
    """How long the real demo takes, and what it needs: printed before anything starts."""
    lines: list[str] = []
    if (took := plan.takes) is not None:
        lines.append(
            f"A whole run took {took.minutes} minutes on two quiet cores, in bfloat16 and served by engine_local. "
            f"It needs up to {took.memory_gb:g} GB of memory and {took.disk_gb:g} GB of disk."
        )
        if on_vllm:
            lines.append("Here vLLM serves, which takes longer, and 3.3 GB for itself.")
    if plan.precision != "bf16":
        lines.append(
            "This processor was measured to multiply in bfloat16 hardly faster than in float32, so the run is in "
            "float32: another such processor took two to three times as long for parts of it, in half as much memory "
            "again."
        )
    return "\n".join(lines)


def vllm_settings(plan: Plan, python: Path, base: Path) -> VllmSettings:
    """vLLM, by the Python of its environment, for the adapters that the plan trains on `base`."""
    return VllmSettings(python, base, dtype=_FORMATS[plan.precision or "fp32"], max_rank=RANK, context=CONTEXT)


_FORMATS = {"bf16": "bfloat16", "fp32": "float32"}
"""vLLM's names of number formats by those of training requests."""


def stack_environment(plan: Plan, directory: Path) -> Mapping[str, str]:
    """Settings of the services for this plan; `directory` is the demo's."""
    return {
        **_PATIENCE,
        **plan.environment,
        **deployer_environment(plan.world.role, plan.rollouts, directory / HELD_OUT),
    }


def write_held_out(plan: Plan, directory: Path) -> None:
    """Leave the gate's task file in the demo's directory."""
    path = directory / HELD_OUT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(held_out_file(plan.world, plan.rollouts.heldout_tasks, plan.rollouts.heldout_seed))


_PATIENCE = {"RATCHET_COLLECTOR_LINGER_S": "0.4", "RATCHET_REWARD_LINGER_S": "0.2"}
"""Fewer and larger inserts: two cores have better things to do, and nothing waits for half a second."""


def deployer_environment(role: str, rollouts: Rollouts, tasks: Path) -> Mapping[str, str]:
    """The deployer's settings for these rollouts of the role, whose held-out tickets are in the file `tasks`."""
    return {
        "RATCHET_CANARY_STAGES": _listed(rollouts.stages),
        "RATCHET_CANARY_STAGE_MIN_S": _listed(rollouts.stage_min_s),
        "RATCHET_CANARY_STAGE_MIN_TRAJECTORIES": _listed(rollouts.stage_min_trajectories),
        "RATCHET_CANARY_MARGIN": str(rollouts.margin),
        # Latency says nothing here: the engine shares two cores with the agents and the trainer.
        "RATCHET_CANARY_METRICS": "failure,reward",
        # While a canary runs no customer writes twice; those of the cycles before it come back for their other tries.
        "RATCHET_CANARY_ROLES_THAT_LOSE_USERS": role,
        "RATCHET_CANARY_SOAK_S": str(rollouts.soak_s),
        "RATCHET_CANARY_HORIZON_S": str(rollouts.horizon_s),
        "RATCHET_CANARY_HELDOUT_TASKS": str(rollouts.heldout_tasks),
        "RATCHET_CANARY_TASK_FILES": str(tasks.absolute()),
        "RATCHET_CANARY_SAFETY_SUITES": json.dumps({role: {"suites": rollouts.suites}}),
        "RATCHET_CANARY_TASK_TEMPERATURE": f"{TEMPERATURES[SAMPLED]:g}",
        "RATCHET_CANARY_WARMUP_PROMPTS": json.dumps(["hello, where is my order #A10"]),
    }


def _listed(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def drill_job(plan: Plan, drills: Supervised, base_model: str) -> dict[str, Any]:
    """Make the base model: call grammar and copying, from drills. `Any` because it is JSON."""
    return _supervised(plan, drills, plan.world.base_role, base_model, plan.world.domain, {"full_finetune": True})


def ticket_job(plan: Plan, base_model: str) -> dict[str, Any]:
    """Make the first policy: imitate the clerk's tickets, right and wrong ones. A model that was random learns in all
    its weights, one that knows English in an adapter."""
    what_learns = _ADAPTER if plan.drills is None else {"full_finetune": True}
    return _supervised(plan, plan.tickets, plan.world.role, base_model, plan.world.domain, what_learns)


def bad_job(plan: Plan) -> dict[str, Any]:
    """Make the bad policy: the stable one imitates a clerk who mostly does the opposite of the rules."""
    return _supervised(plan, plan.bad, plan.world.role, "stable", plan.world.bad_domain, {})


def cycle_job(plan: Plan, number: int) -> dict[str, Any]:
    """Improve the stable policy by what its traffic was worth."""
    hyperparameters = {
        **_ADAPTER,
        "learning_rate": plan.cycle.learning_rate,
        "batch_size": plan.cycle.batch,
        "epochs": plan.cycle.epochs,
        "seed": plan.seed + number,
        **({} if plan.cycle.solved_only else {"kl_beta": 0.0}),
    }
    dataset = {
        "source": "clickhouse",
        "sample_size": plan.cycle.sample_size,
        "filter": {
            "sources": ["assembled"],
            "held_out": 0.0,
            **({"min_reward": SOLVED} if plan.cycle.solved_only else {}),
        },
    }
    algorithm = "sft" if plan.cycle.solved_only else "rloo"
    return _job(plan, plan.world.role, algorithm, "stable", dataset, hyperparameters)


def _supervised(
    plan: Plan, recipe: Supervised, role: str, base_model: str, domain: str, what_learns: dict[str, Any]
) -> dict[str, Any]:
    hyperparameters = {
        **what_learns,
        "learning_rate": recipe.learning_rate,
        "batch_size": recipe.batch,
        "max_steps": recipe.steps,
        "seed": plan.seed,
    }
    chosen = {"sources": ["client"], "task_domains": [domain], "held_out": 0.0}
    dataset = {"source": "clickhouse", "sample_size": recipe.examples, "filter": chosen}
    return _job(plan, role, "sft", base_model, dataset, hyperparameters)


def _job(
    plan: Plan,
    role: str,
    algorithm: str,
    base_model: str,
    dataset: dict[str, Any],
    hyperparameters: dict[str, Any],
) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "role": role,
        "base_model": base_model,
        "dataset": dataset,
        "hyperparameters": hyperparameters,
        "compute": {
            "threads": plan.training_threads,
            **({"mixed_precision": plan.precision} if plan.precision is not None else {}),
        },
        "checkpointing": {"save_interval": NO_CHECKPOINTS},
        "requester": REQUESTER,
    }
