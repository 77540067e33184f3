"""`ratchet plans`: what to change because of a pattern, who approved it, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ratchet.cli.api import get, segment
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.ids import listed_ids
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, OptionalRoleArgument
from ratchet.cli.output import console, print_answer, print_facts, print_section, print_table
from ratchet.cli.patterns import ANALYST, Reason, decided, effect_of, only, read_list, triggers_of
from ratchet.core.contract.http.analyst import DecisionIn, PlanOut, PlansOut
from ratchet.core.contract.learning import AdaptationPlan

app = typer.Typer(no_args_is_help=True)

PlanId = Annotated[
    str, typer.Argument(help="The plan's id, or how it begins, as in `ratchet plans list`.", metavar="ID")
]


@app.command("list")
def list_plans(
    role: OptionalRoleArgument = None,
    state: Annotated[
        Literal["draft", "approved", "executing", "validated", "rolled_back", "rejected"] | None,
        typer.Option(help="Only those of this state."),
    ] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """List plans, the newest first."""
    answer = read_list(locate(directory), "plans", PlansOut, role, state)
    columns = ("plan", "role", "state", "risk", "change", "verdict or summary")
    ids = listed_ids(each.plan_id for each in answer.plans)
    rows = [
        (ids[each.plan_id], each.role, each.state, each.risk, each.change.kind, each.verdict or each.change.summary)
        for each in answer.plans
    ]
    print_answer(answer, as_json, lambda: print_table(columns, rows, "no plans"))


@app.command()
def show(plan: PlanId, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Show a plan: what it changes and why, its risk, its approvals, and what came of it."""
    endpoints = locate(directory)
    answer = get(endpoints, ANALYST, path_of(resolved(endpoints, plan)), PlanOut)
    print_answer(answer, as_json, lambda: show_plan(answer))


@app.command()
def approve(
    plan: PlanId,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; the trail keeps it.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Approve a draft: it is carried out through gates and canary, or as a training."""
    _decide(directory, plan, "approve", DecisionIn(reason=reason), dry_run=dry_run, as_json=as_json)


@app.command()
def reject(
    plan: PlanId,
    reason: Reason,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Reject a plan that has not begun: it is not carried out, and its pattern gets no other one."""
    _decide(directory, plan, "reject", DecisionIn(reason=reason), dry_run=dry_run, as_json=as_json)


def _decide(directory: Path, plan: str, verb: str, body: DecisionIn, *, dry_run: bool, as_json: bool) -> None:
    endpoints = locate(directory)
    path = f"{path_of(resolved(endpoints, plan))}/{verb}"
    answer = decided(endpoints, path, PlanOut, body, dry_run=dry_run, as_json=as_json)
    if answer is not None:
        print_answer(answer, as_json, f"plan {answer.plan.plan_id} is {answer.plan.state}")


def resolved(endpoints: Endpoints, beginning: str) -> AdaptationPlan:
    """The plan whose id begins so. Raises `NotFound` or `Rejected`."""
    every = read_list(endpoints, "plans", PlansOut).plans
    return every[only([each.plan_id for each in every], beginning, "plan")]


def path_of(plan: AdaptationPlan) -> str:
    """Where the analyst has it."""
    return f"/v1/plans/{segment(plan.role)}/{plan.plan_id}"


def show_plan(answer: PlanOut) -> None:
    """Its facts, its steps, and the text that it puts into instructions."""
    plan, effect = answer.plan, answer.plan.effect
    facts = {
        "plan": plan.plan_id,
        "role": plan.role,
        "state": plan.state,
        "waits for": answer.waits_for,
        "because": answer.pattern.statement if answer.pattern is not None else None,
        "change": f"{plan.change.kind}: {plan.change.summary}",
        "made from": plan.change.base,
        "weight": None if plan.change.weight is None else f"{plan.change.component}: {plan.change.weight:.3g}",
        "focus area": plan.focus_area,
        "measured among": triggers_of(plan.triggers),
        "promises": f"at most {effect_of(plan.expected)}" if plan.expected.value else "nothing that arms compare",
        "risk": plan.risk,
        "succeeds by": plan.success_metrics,
        "taken back if": plan.rollback_criteria,
        "held-out tasks of": plan.change.tasks,
        "policy": plan.policy,
        "job": plan.job_id,
        "rollout": plan.rollout_id,
        "effect": None
        if effect is None
        else f"{plan.expected.measure} {effect.difference:+.3g}, between {effect.low:+.3g} and {effect.high:+.3g}, of"
        f" {effect.canary} canary and {effect.stable} stable trajectories",
        "verdict": plan.verdict,
    }
    print_facts(facts)
    print_section(
        ("state", "at", "by", "reason"), [(each.state, each.at, each.by, each.reason) for each in plan.history]
    )
    instructions = plan.change.bundle.instructions if plan.change.bundle is not None else None
    if instructions is not None:
        console.print(f"\n--- instructions\n{instructions.text}", markup=False)
