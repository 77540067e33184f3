"""A planner beside simple rules in the simulator: the same plans, and other choices of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.core.contract.workflows import Plan
from ratchet.core.planning.base import Choice, Planner, with_floor
from ratchet.core.planning.measures import Measures, measures_of
from ratchet.core.planning.simulator import Teacher, World, play_many

Rule = Callable[[Choice], Sequence[float]]


def always(name: str) -> Rule:
    """One worker; where it is not capable, all alike."""

    def rule(choice: Choice) -> Sequence[float]:
        chosen = [float(worker.name == name) for worker in choice.workers]
        return chosen if sum(chosen) else at_random(choice)

    return rule


def at_random(choice: Choice) -> Sequence[float]:
    """All capable ones alike."""
    return [1.0 / len(choice.workers)] * len(choice.workers)


def cheapest(choice: Choice) -> Sequence[float]:
    """The lowest price."""
    lowest = min(choice.workers, key=lambda worker: (worker.cost_per_token, worker.name))
    return [float(worker is lowest) for worker in choice.workers]


RULES: Mapping[str, Rule] = {
    "fixed": always("llm-medium"),
    "random": at_random,
    "cheapest": cheapest,
    "best single worker": always("llm-large"),
}
"""By name: the workers are those of the simulator, whose largest is the best of those that can do everything."""


@dataclass(frozen=True, slots=True)
class WithRule:
    """The plans of one planner and the choices of a rule, with the floor, as every selector that serves has it."""

    planner: Planner
    rule: Rule | None = None
    """None: the planner's own choices."""
    floor: bool = True
    plans: dict[str, Plan] = field(default_factory=dict[str, Plan])

    @property
    def task_types(self) -> tuple[str, ...]:
        return self.planner.task_types

    def plan(self, instruction: str) -> Plan:
        """The planner's; it plans each instruction once."""
        if instruction not in self.plans:
            self.plans[instruction] = self.planner.plan(instruction)
        return self.plans[instruction]

    def propensities(self, choice: Choice) -> list[float]:
        """By the rule, else by the planner, whose floor is its own."""
        if self.rule is None:
            return self.planner.propensities(choice)
        chosen = list(self.rule(choice))
        return with_floor(chosen) if self.floor else chosen


def compared(planner: Planner, count: int, seed: int) -> list[Measures]:
    """The planner, the rules on its plans, and the benchmarks' true plans with any capable worker.

    Each plays the same held-out instructions in a world of its own, of the same seed.
    """
    planners: dict[str, Planner] = {
        "planner": WithRule(planner),
        **{name: WithRule(planner, rule) for name, rule in RULES.items()},
        "true plans, random": Teacher(),
    }
    return [
        measures_of(name, play_many(World(seed), each, count, seed, held_out=True)) for name, each in planners.items()
    ]
