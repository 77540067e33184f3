"""What the demo does, in numbers: data, training recipes, traffic, gate and stages. One preset per purpose."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

ROLE, BASE_ROLE = "helpdesk", "helpdesk-base"
"""The role whose policy learns, and the role under which its base model is made."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """One `sft` job on the whole model: `examples` conversations, `steps` train steps of `batch` of them."""

    examples: int
    steps: int
    batch: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Reinforced:
    """One `rloo` job with LoRA on at most `sample_size` trajectories.

    `floor` is the least advantage of a success, so that solved tickets keep their skill; `negative_scale` tempers
    failures.
    """

    learning_rate: float
    epochs: int
    sample_size: int
    batch: int = 32
    rank: int = 32
    floor: float | None = 0.25
    negative_scale: float = 0.3
    clip: tuple[float, float] | None = None
    """How far the probability ratio may fall and rise; None leaves the learner's default."""
    transform: str = "identity"


@dataclass(frozen=True, slots=True)
class Rollouts:
    """How candidates are judged, as the deployer's settings."""

    heldout_tasks: int
    heldout_seed: int = 11
    stages: tuple[int, ...] = (10, 25, 50)
    """Canary weight of each stage, percent."""
    stage_min_s: tuple[float, ...] = (2, 2, 2)
    stage_min_trajectories: tuple[int, ...] = (10, 20, 40)
    margin: float = 0.1
    """How much worse in failure rate and mean reward still counts as not worse."""
    tick_s: float = 0.25
    soak_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole demo."""

    drills: Supervised
    tickets: Supervised
    cycle: Reinforced
    sabotage: Reinforced
    rollouts: Rollouts
    first_tasks: int
    """Training tickets that the first policy plays, before there is a canary."""
    tries: int
    """Trajectories per ticket."""
    promotions: int
    """Policies that have to be promoted by evidence."""
    max_cycles: int
    agents: int
    """Agents at work at the same time."""
    best_success: float
    """Least held-out success of the best policy."""
    seed: int = 0
    training_threads: int = 2
    """Torch threads of a job while nothing else works."""
    canary_deadline_s: float = 300.0
    """Longest wait for a verdict."""


SABOTAGE = Reinforced(
    learning_rate=5e-3,
    epochs=6,
    sample_size=480,
    floor=None,
    negative_scale=1.0,
    clip=(0.95, 5.0),
    transform="negate",
)
"""Learns the opposite without any of the brakes: on a good policy there is little to learn the opposite from."""

DEMO = Plan(
    drills=Supervised(examples=2500, steps=130, batch=32, learning_rate=3e-3),
    tickets=Supervised(examples=1200, steps=150, batch=32, learning_rate=2e-3),
    cycle=Reinforced(learning_rate=2.5e-3, epochs=4, sample_size=400),
    sabotage=SABOTAGE,
    rollouts=Rollouts(heldout_tasks=250),
    first_tasks=40,
    tries=4,
    promotions=2,
    max_cycles=3,
    agents=16,
    best_success=0.75,
)
"""`make demo`: two cores, five minutes."""

SMALL = Plan(
    drills=Supervised(examples=2500, steps=130, batch=32, learning_rate=3e-3),
    tickets=Supervised(examples=1200, steps=120, batch=32, learning_rate=2e-3),
    cycle=Reinforced(learning_rate=2.5e-3, epochs=4, sample_size=320),
    sabotage=SABOTAGE,
    rollouts=Rollouts(heldout_tasks=120, stages=(25, 50), stage_min_s=(1, 1), stage_min_trajectories=(10, 20)),
    first_tasks=64,
    tries=4,
    promotions=1,
    max_cycles=3,
    agents=16,
    best_success=0.5,
)
"""The end-to-end test: one promotion instead of two, fewer held-out tickets."""


def stack_environment(plan: Plan) -> Mapping[str, str]:
    """Settings of the services for this plan."""
    return {**_PATIENCE, **deployer_environment(plan.rollouts)}


_PATIENCE = {"RATCHET_COLLECTOR_LINGER_S": "0.4", "RATCHET_REWARD_LINGER_S": "0.2"}
"""Fewer and larger inserts: two cores have better things to do, and nobody waits for half a second."""


def deployer_environment(rollouts: Rollouts) -> Mapping[str, str]:
    """The deployer's settings for these rollouts."""
    return {
        "RATCHET_CANARY_STAGES": _listed(rollouts.stages),
        "RATCHET_CANARY_STAGE_MIN_S": _listed(rollouts.stage_min_s),
        "RATCHET_CANARY_STAGE_MIN_TRAJECTORIES": _listed(rollouts.stage_min_trajectories),
        "RATCHET_CANARY_MARGIN": str(rollouts.margin),
        # Latency says nothing here: the engine shares two cores with the agents and the trainer.
        "RATCHET_CANARY_METRICS": "failure,reward",
        "RATCHET_CANARY_SOAK_S": str(rollouts.soak_s),
        "RATCHET_CANARY_TICK_S": str(rollouts.tick_s),
        "RATCHET_CANARY_HELDOUT_COMMAND": f"{sys.executable} -m ratchet.demo.heldout",
        "RATCHET_CANARY_HELDOUT_TASKS": str(rollouts.heldout_tasks),
        "RATCHET_CANARY_HELDOUT_SEED": str(rollouts.heldout_seed),
        "RATCHET_CANARY_WARMUP_PROMPTS": json.dumps(["hello, where is my order #A10"]),
    }


def _listed(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{number:g}" for number in numbers)
