"""`ratchet workflows`: run instructions as graphs of sub-tasks, see what became of them, and train their planner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratchet.cli.api import get, post, segment
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, RoleOption
from ratchet.cli.output import (
    console,
    errors,
    follow_up,
    print_answer,
    print_dry_run,
    print_facts,
    print_section,
    print_table,
)
from ratchet.cli.training import Parameters, Timeout, Wait, hyperparameters, require_wait, submit
from ratchet.cli.waiting import Waiting, goes_on, until
from ratchet.cli.workflow_data import augment, collect, evaluate, export, prepare
from ratchet.core.contract.http.workflows import AUTO, SubTaskOut, WorkflowIn, WorkflowOut, WorkflowsOut
from ratchet.core.contract.workflows import ENDED_STATES, PLANNER_ROLE, Plan
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.planning.mermaid import Standing, mermaid

app = typer.Typer(no_args_is_help=True)
for _command in (export, collect, prepare, augment, evaluate):
    app.command()(_command)

ALGORITHMS = {"1": "planner_supervised", "2": "planner_ppo"}
"""By phase."""

Id = Annotated[str, typer.Argument(help="The workflow's id, as in `ratchet workflows list`.", metavar="ID")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=FILE", help="A text file that sub-tasks without predecessors get; repeatable."
    ),
]


@app.command()
def run(
    instruction: Annotated[str, typer.Argument(help="What is to be done, in words.")],
    role: RoleOption = PLANNER_ROLE,
    policy: Annotated[
        str, typer.Option(help="A planner's version by name, such as planner@3; auto: as the route says.")
    ] = AUTO,
    budget: Annotated[float, typer.Option(min=0, help="US dollars: no call starts that could exceed it.")] = 1.0,
    deadline: Annotated[float, typer.Option(min=1, max=3600, help="Seconds.")] = 300.0,
    inputs: Inputs = None,
    user: Annotated[str | None, typer.Option(help="The end user; only a keyed hash is stored.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Return when it has ended; exit code 3 unless it succeeded.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Run an instruction: it is planned, its sub-tasks go to workers, and what came of it is logged."""
    if budget == 0:
        raise typer.BadParameter("--budget must be above 0: every call reserves some of it")
    endpoints = locate(directory)
    asked = WorkflowIn(
        instruction=instruction,
        role=role,
        policy=policy,
        inputs=read_inputs(inputs or []),
        budget_usd=budget,
        deadline_s=deadline,
        user=user,
    )
    if dry_run:
        print_dry_run(f"POST {endpoints.url('workflows')}/v1/workflows", asked, as_json)
        return
    workflow = post(endpoints, "workflows", "/v1/workflows", WorkflowOut, asked)
    if follow:
        workflow = follow_to_end(endpoints, workflow, Waiting(), quiet=as_json)
    look = follow_up("workflows", "show", workflow.workflow_id, directory=directory)
    started = f"workflow {workflow.workflow_id} is {workflow.state}; `{look}` shows it"
    print_answer(workflow, as_json, lambda: show_workflow(workflow) if follow else console.print(started, markup=False))
    if follow and workflow.state != "succeeded":
        raise typer.Exit(ExitCode.PARTLY)


@app.command("list")
def list_workflows(as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List the workflows of the last day, the newest first."""
    answer = get(locate(directory), "workflows", "/v1/workflows", WorkflowsOut)
    columns = ("workflow", "policy", "arm", "state", "USD", "budget", "created", "instruction")
    rows = [
        (
            each.workflow_id,
            each.policy or each.role,
            each.arm,
            each.state,
            each.cost_usd,
            each.budget_usd,
            each.created_at,
            each.instruction[:80],
        )
        for each in answer.workflows
    ]
    print_answer(answer, as_json, lambda: print_table(columns, rows, "no workflows in the last day"))


@app.command()
def show(
    workflow_id: Id,
    as_mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print the graph alone, as a Mermaid flowchart.")
    ] = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Show a workflow: its graph, who did what at which cost, and the outputs."""
    workflow = read_workflow(locate(directory), workflow_id)
    if not as_mermaid:
        print_answer(workflow, as_json, lambda: show_workflow(workflow))
        return
    if workflow.plan is None:
        raise Rejected(f"workflow {workflow_id} has no plan{'' if workflow.state in ENDED_STATES else ' yet'}")
    text = mermaid(workflow.plan, [Standing(each.state, each.worker, each.run) for each in workflow.sub_tasks])
    print_answer({"mermaid": text}, as_json, lambda: console.print(text, markup=False, end="", soft_wrap=True))


@app.command()
def cancel(workflow_id: Id, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Cancel a workflow: calls under way are broken off, and what they reserved counts as spent."""
    answer = post(locate(directory), "workflows", f"/v1/workflows/{segment(workflow_id)}/cancel", WorkflowOut)
    print_answer(answer, as_json, f"workflow {answer.workflow_id} is {answer.state}")


@app.command()
def train(
    role: RoleOption = PLANNER_ROLE,
    phase: Annotated[
        Literal["1", "2"], typer.Option(help="1: by imitation of what succeeded (planner_supervised); 2: planner_ppo.")
    ] = "1",
    algorithm: Annotated[
        Literal["planner_supervised", "planner_ppo", "selector_linucb", "selector_thompson"] | None,
        typer.Option(help="Instead of a phase."),
    ] = None,
    parameter: Parameters = None,
    wait: Wait = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Train the planner of a role on the executions that were logged, as a job like those of `ratchet train`.

    What it makes is a policy of the role: the gate judges it by the log, then a canary by what happens.
    """
    require_wait(timeout, wait=wait)
    body: dict[str, object] = {
        "algorithm": algorithm or ALGORITHMS[phase],
        "role": role,
        "base_model": "stable",
        "hyperparameters": hyperparameters(parameter or []),
        "requester": "ratchet workflows train",
    }
    submit(directory, body, wait=wait, timeout_s=timeout, dry_run=dry_run, as_json=as_json)


def read_inputs(options: Sequence[str]) -> dict[str, str]:
    """Texts by name, of `NAME=FILE` options. Raises `typer.BadParameter` or `NotFound`."""
    texts: dict[str, str] = {}
    for option in options:
        name, separator, path = option.partition("=")
        if not (name and separator and path):
            raise typer.BadParameter(f"--input takes NAME=FILE, not {option!r}")
        try:
            texts[name] = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise NotFound(f"cannot read {path} as text: {error}") from error
    return texts


def read_workflow(endpoints: Endpoints, workflow_id: str, timeout_s: float = 30.0) -> WorkflowOut:
    """The workflow as it stands. Raises `NotFound`, which says where older ones are."""
    try:
        return get(endpoints, "workflows", f"/v1/workflows/{segment(workflow_id)}", WorkflowOut, timeout_s=timeout_s)
    except NotFound as error:
        raise NotFound(f"{error}: `ratchet workflows list` has those of the last day, `export` all") from error


def follow_to_end(endpoints: Endpoints, workflow: WorkflowOut, waiting: Waiting, *, quiet: bool) -> WorkflowOut:
    """The workflow once it has ended; what changes meanwhile is a line on standard error."""
    shown: set[str] = set()

    def show_news(seen: WorkflowOut) -> None:
        for line in news(seen):
            if line not in shown and not quiet:
                errors.print(line, markup=False)
            shown.add(line)

    def ask(answer_s: float) -> WorkflowOut:
        return read_workflow(endpoints, workflow.workflow_id, answer_s)

    look = follow_up("workflows", "show", workflow.workflow_id, directory=endpoints.directory)
    with goes_on(f"workflow {workflow.workflow_id}", f"`{look}` shows it"):
        ended = until(lambda seen: seen.state in ENDED_STATES, workflow, ask, show_news, waiting)
    show_news(ended)
    return ended


def news(workflow: WorkflowOut) -> list[str]:
    """What there is to say of a workflow so far, a line each."""
    lines = [] if workflow.plan is None else [f"planned: {_counted(len(workflow.plan.sub_tasks))}"]
    lines += [f"{_title(workflow, each)}: {each.state}, by {each.worker}" for each in workflow.sub_tasks if each.worker]
    return lines + ([workflow.warning] if workflow.warning else [])


def _counted(sub_tasks: int) -> str:
    return "1 sub-task" if sub_tasks == 1 else f"{sub_tasks} sub-tasks"


def _title(workflow: WorkflowOut, sub_task: SubTaskOut) -> str:
    kind = workflow.plan.sub_tasks[sub_task.index].task_type if workflow.plan else "sub-task"
    return f"{sub_task.index + 1}. {kind}"


def show_workflow(workflow: WorkflowOut) -> None:
    """Its facts, one line for each sub-task, and what came out."""
    facts = {
        "workflow": workflow.workflow_id,
        "policy": workflow.policy,
        "arm": workflow.arm,
        "state": workflow.state,
        "error": workflow.error,
        "warning": workflow.warning,
        "plan by": workflow.plan.made_by if workflow.plan else None,
        "USD": f"{workflow.cost_usd:.6f} of {workflow.budget_usd:g}",
        "reserved": workflow.reserved_usd or None,
        "created": workflow.created_at,
        "ended": workflow.ended_at,
        "instruction": workflow.instruction,
    }
    print_facts(facts)
    if workflow.plan is not None:
        columns = ("#", "type", "after", "state", "worker", "p", "USD", "ms", "retries", "instruction or error")
        print_section(columns, [_row(workflow.plan, each) for each in workflow.sub_tasks])
    for each in workflow.sub_tasks:
        if each.output is not None:
            console.print(f"\n{_title(workflow, each)}", markup=False)
            console.print(each.output, markup=False)
    if workflow.result is not None and not any(each.output for each in workflow.sub_tasks):
        console.print(f"\n{workflow.result}", markup=False)


def _row(plan: Plan, each: SubTaskOut) -> tuple[object, ...]:
    sub_task, run_ = plan.sub_tasks[each.index], each.run
    after = ", ".join(str(before + 1) for before in sub_task.depends_on) or None
    first = (each.index + 1, sub_task.task_type, after, each.state)
    if run_ is None:
        return (*first, each.worker, None, None, None, None, sub_task.instruction)
    measured = (run_.worker, run_.propensity, run_.cost_usd, run_.latency_ms, run_.retries)
    return (*first, *measured, run_.error or sub_task.instruction)
