"""What to change because of a pattern: instructions made of the evidence, a training, tasks, or a note. Pure.

Instructions become part of what a policy reads in every call. Of what users, agents and tools wrote nothing may stand
there but single words, in quotes: a sentence would be obeyed. A plan keeps no conversation, only ids of trajectories:
what is erased leaves nothing in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import permutations
from statistics import median

import msgspec

from ratchet.analyst.domain.plan import ANALYST, DRAFT, plan_id_of
from ratchet.analyst.domain.risk import risk_of
from ratchet.analyst.mining.texts import sentence_of
from ratchet.core.contract.bundle import APPEND, NO_BUNDLE, Bundle, Instructions
from ratchet.core.contract.http.jobs import PlanOut
from ratchet.core.contract.learning import (
    MOST_EVIDENCE,
    AdaptationPlan,
    Effect,
    Pattern,
    PlanChange,
    PlanStep,
    Trigger,
)
from ratchet.core.contract.training import Dataset, DatasetFilter, Hyperparameters, TrainingConfig
from ratchet.core.contract.trajectory import Trajectory

LEAST_RUNS = 5
"""Runs of either outcome from which a contrast is drawn."""
CLEAR = 0.4
"""Difference of shares from which a habit is one of those that succeed."""
MOST_LINES = 5
MOST_TOOLS = 40
"""Tools that are compared in pairs: the most frequent."""
TRAINING_ROWS = 5_000
COMPARED = frozenset({"bundle", "training"})
"""Changes that make a policy: the arms of its rollout show what it does."""
REFUSED = (
    "a gate refuses it, or the canary's tests roll it back: it reaches every call of the role, whatever it is about"
)
_SAFE = re.compile(r"[\w.:-]{1,60}")
"""A word or name that may stand in instructions."""
_RANGE = re.compile(r"\d+ (to \d+ characters|characters and more)")
"""A value of `length`, the one that takes several words: the analyst makes it."""
_KNOWN: Mapping[str, str] = {
    "task_type": "tasks of the kind {}",
    "domain": "tasks of the domain {}",
    "language": "requests in the language {}",
    "term": "requests that mention {}",
    "document": "answers from the document {}",
    "offered": "requests that offer the tool {}",
    "tool": "runs that call {}",
    "tool_error": "runs in which the tool {} fails",
    "agent": "the agent {}",
    "length": "requests of the length {}",
}
"""Triggers in the words of instructions; one of another attribute (an hour, a model) means nothing to their reader."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a change is made of."""

    base: str | None = None
    """Name of the policy that serves; None where the role has none, and calls go on as agents send them."""
    bundle: Bundle = NO_BUNDLE
    succeeded: Sequence[Trajectory] = ()
    """Trajectories that match what is known before, and came to a good end."""
    failed: Sequence[Trajectory] = ()
    """The pattern's evidence."""
    training: PlanOut | None = None
    """What the coordinator proposes to learn next."""
    hyperparameters: Hyperparameters = field(default_factory=Hyperparameters)
    """Of the role's last training of that kind: what suits its model is known to people, and not to the analyst."""
    weight: float | None = None
    """What the pattern's component weighs in the newest reward that has it."""


def contrast(
    succeeded: Sequence[Trajectory], failed: Sequence[Trajectory], triggers: Sequence[Trigger] = ()
) -> list[str]:
    """What runs that succeeded do and those that failed do not, as advice; empty where nothing is clear. Whether a tool
    is called says nothing where a pattern's triggers name it: by those its runs were picked."""
    good, bad = [_calls(run) for run in succeeded], [_calls(run) for run in failed]
    if min(len(good), len(bad)) < LEAST_RUNS:
        return []
    counted = Counter(tool for run in (*good, *bad) for tool in set(run))
    tools = sorted(tool for tool, _ in counted.most_common(MOST_TOOLS))
    named = {word for trigger in triggers for word in re.split(r"[^\w.-]+", trigger.value)}
    lines: list[tuple[float, str]] = []
    for tool in tools:
        lines += _by_use(tool, good, bad) if tool not in named else []
        lines += _by_place(tool, good, bad)
    for first, second in permutations(tools, 2):
        gap = _share_in_order(good, first, second) - _share_in_order(bad, first, second)
        if gap >= CLEAR:
            lines.append((gap, f'Call "{first}" before "{second}".'))
    return [line for _, line in sorted(lines, reverse=True)][:MOST_LINES]


def _by_use(tool: str, good: Sequence[Sequence[str]], bad: Sequence[Sequence[str]]) -> list[tuple[float, str]]:
    used = [sum(tool in run for run in runs) / len(runs) for runs in (good, bad)]
    gap = used[0] - used[1]
    if gap >= CLEAR:
        return [(gap, f'Call "{tool}".')]
    if gap <= -CLEAR:
        return [(-gap, f'Do without "{tool}" where you can.')]
    return []


def _by_place(tool: str, good: Sequence[Sequence[str]], bad: Sequence[Sequence[str]]) -> list[tuple[float, str]]:
    """Of a tool that both call: whether those that succeed call it sooner, by the median of the first call."""
    places = [[run.index(tool) + 1 for run in runs if tool in run] for runs in (good, bad)]
    if min(map(len, places)) < LEAST_RUNS:
        return []
    early, late = median(places[0]), median(places[1])
    sooner = sum(place <= early for place in places[0]) / len(places[0])
    sooner -= sum(place <= early for place in places[1]) / len(places[1])
    if late < early + 1 or sooner < CLEAR:
        return []
    return [(sooner, f'Call "{tool}" early, as the call of number {early:g} or before: not as that of {late:g}.')]


def _calls(run: Trajectory) -> list[str]:
    """The tools that a run calls, in order; names that are no names are left out."""
    names = (turn.action.tool_name for turn in run.turns if turn.action.type == "tool_call")
    return [name for name in names if name is not None and _SAFE.fullmatch(name)]


def _share_in_order(runs: Sequence[Sequence[str]], first: str, second: str) -> float:
    """Of the runs that call both, those that call `first` before; 0 where fewer than `LEAST_RUNS` do."""
    both = [run for run in runs if first in run and second in run]
    in_order = sum(run.index(first) < run.index(second) for run in both)
    return in_order / len(both) if len(both) >= LEAST_RUNS else 0.0


def guidance(pattern: Pattern, lines: Sequence[str]) -> str:
    """The paragraph that instructions get because of a pattern; no placeholder is in it."""
    known = [words for trigger in pattern.triggers if (words := _in_words(trigger)) is not None]
    about = f"For {' and '.join(known)}: " if known else ""
    text = "\n".join((f"{about}{pattern.advice}", *(f"- {line}" for line in lines)))
    return text.replace("{{", "{ {").replace("}}", "} }")


def _in_words(trigger: Trigger) -> str | None:
    """A condition; None where its value is more than a word. Of a tool's error only the tool's name is taken."""
    form, value = _KNOWN.get(trigger.attribute), trigger.value
    if trigger.attribute == "tool_error":
        value = value.partition(": ")[0]
    allowed = _RANGE if trigger.attribute == "length" else _SAFE
    return form.format(f'"{value}"') if form is not None and allowed.fullmatch(value) else None


def proposed(pattern: Pattern, kind: str, material: Material) -> PlanChange:
    """The change of a kind that a pattern leads to; a note where the material does not suffice for it."""
    maker = _MAKERS.get(kind)
    change = maker(pattern, material) if maker is not None else None
    if change is not None:
        return change
    return PlanChange(kind="note", summary=sentence_of(pattern.advice))


def _bundle(pattern: Pattern, material: Material) -> PlanChange | None:
    text = guidance(pattern, contrast(material.succeeded, material.failed, pattern.triggers))
    before = material.bundle.instructions
    if material.bundle.planner is not None or (before is not None and text in before.text):
        return None
    instructions = (
        Instructions(text=text, mode=APPEND)
        if before is None
        else msgspec.structs.replace(before, text=f"{before.text}\n\n{text}")
    )
    bundle = msgspec.structs.replace(material.bundle, instructions=instructions)
    summary = sentence_of(f"Instructions get a paragraph: {text}")
    tasks = _ids_of(material.failed) if pattern.kind == "failure_cluster" else ()
    return PlanChange(kind="bundle", summary=summary, bundle=bundle, base=material.base, tasks=tasks)


def _training(pattern: Pattern, material: Material) -> PlanChange | None:
    plan = material.training
    if plan is None or plan.algorithm is None:
        return None
    domains = [trigger.value for trigger in pattern.triggers if trigger.attribute == "domain"]
    chosen = plan.filter
    if domains:
        chosen = msgspec.structs.replace(chosen or DatasetFilter(), task_domains=domains)
    config = TrainingConfig(
        algorithm=plan.algorithm,
        base_model="stable",
        dataset=Dataset(source="clickhouse", sample_size=TRAINING_ROWS, filter=chosen),
        hyperparameters=material.hyperparameters,
    )
    of = f" on the domain {', '.join(domains)}" if domains else " on all of the role"
    return PlanChange(
        kind="training", summary=sentence_of(f"A training by {plan.algorithm}{of}: {plan.why}"), training=config
    )


def _tasks(_: Pattern, material: Material) -> PlanChange | None:
    tasks = _ids_of(material.failed)
    if not tasks:
        return None
    summary = f"Held-out tasks of {len(tasks)} trajectories: a person reads them, says what a right answer is, and adds"
    return PlanChange(kind="held_out_tasks", summary=f"{summary} them.", tasks=tasks)


def _ids_of(runs: Sequence[Trajectory]) -> tuple[str, ...]:
    return tuple(run.trajectory_id for run in runs[:MOST_EVIDENCE])


def _weight(pattern: Pattern, material: Material) -> PlanChange | None:
    """Half of what the component weighs now: people may choose another weight, and read how to set it."""
    component = component_of(pattern)
    if component is None or not material.weight:
        return None
    half = material.weight / 2
    summary = (
        f"The weight of {component} from {material.weight:.3g} to {half:.3g}: set it in RATCHET_REWARD_WEIGHTS, raise"
        " RATCHET_REWARD_FUNCTION_VERSION, and compare by `ratchet rewards recompute` before `ratchet rewards accept`"
    )
    return PlanChange(kind="reward_weight", summary=sentence_of(summary), component=component, weight=half)


def component_of(pattern: Pattern) -> str | None:
    """The component of the reward that a pattern is about."""
    return next((trigger.value for trigger in pattern.triggers if trigger.attribute == "component"), None)


_MAKERS: Mapping[str, Callable[[Pattern, Material], PlanChange | None]] = {
    "bundle": _bundle,
    "training": _training,
    "held_out_tasks": _tasks,
    "reward_weight": _weight,
}


def drafted(
    pattern: Pattern, change: PlanChange, entry: tuple[Trigger, ...], tries: int, now: datetime
) -> AdaptationPlan:
    """A plan, which waits for an approval. `entry`: the triggers among which its effect is measured. It promises at
    most that trajectories that match become as the others."""
    seen, matching = pattern.effect, "that match the triggers" if entry else "of the role"
    plan = AdaptationPlan(
        plan_id=plan_id_of(pattern, tries),
        role=pattern.role,
        pattern_id=pattern.pattern_id,
        state=DRAFT,
        focus_area=pattern.focus_area,
        change=change,
        triggers=entry,
        expected=Effect(measure=seen.measure, value=-seen.value, low=-seen.high, high=-seen.low),
        risk=risk_of(change, pattern),
        success_metrics=(
            f"{seen.measure} of canary less stable, among trajectories {matching}: better, and at most by"
            f" {abs(seen.value):.3g}, which makes them as the others",
        ),
        rollback_criteria=(
            REFUSED,
            f"the arms show that {seen.measure} became worse among trajectories {matching}",
        ),
        history=(PlanStep(state=DRAFT, at=now, by=ANALYST),),
    )
    return plan if change.kind in COMPARED else unpromised(plan)


def unpromised(plan: AdaptationPlan) -> AdaptationPlan:
    """A plan whose effect no arms can compare: it promises nothing."""
    rolled_out = plan.change.kind in COMPARED
    return msgspec.structs.replace(
        plan,
        expected=Effect(measure=plan.expected.measure, value=0.0, low=0.0, high=0.0),
        success_metrics=("people judge it: no arms compare what it brings",),
        rollback_criteria=(REFUSED if rolled_out else "nothing is rolled out: it changes no policy",),
    )
