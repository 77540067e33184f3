"""`ratchet jobs`: training jobs: which there are, and for one of them its facts and its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import msgspec
import typer
from typer.core import TyperGroup

from ratchet.cli.api import get, require_role
from ratchet.cli.connections import ask_warehouse, objects_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import NoStack
from ratchet.cli.ids import job_named, listed_ids, no_job
from ratchet.cli.options import HERE, AsJson, Directory, JobArgument, OptionalRole, Since, since_of
from ratchet.cli.output import (
    console,
    errors,
    follow_up,
    plan_lines,
    print_answer,
    print_facts,
    print_section,
    print_table,
)
from ratchet.core.contract.http.jobs import JobOut, JobsOut
from ratchet.core.contract.policy_manifest import REWARD_MODEL
from ratchet.core.contract.training import CurrentMetrics, ResourceUsage
from ratchet.core.errors import NotFound, RatchetError
from ratchet.core.rules.job_facts import facts_of, figures_of, sentence_of
from ratchet.core.stores.training_history import training_history

if TYPE_CHECKING:
    from ratchet.core.stores.training_history import AttemptRecord


class Jobs(TyperGroup):
    """`ratchet jobs ID` is `ratchet jobs show ID`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words call."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


PAGE = 1000
"""Jobs that are asked for at a time."""
app = typer.Typer(cls=Jobs, invoke_without_command=True)

State = Annotated[str | None, typer.Option(help="Only jobs in this state: queued, running, completed, failed, ...")]


@app.callback()
def jobs(
    context: typer.Context,
    role: OptionalRole = None,
    state: State = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """List training jobs, newest first. `ratchet jobs show` shows one."""
    if context.invoked_subcommand is not None:
        sources = map(context.get_parameter_source, context.params)
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            raise typer.BadParameter(f"options stand behind `{context.invoked_subcommand}`")
        return
    asked = {name: value for name, value in (("role", role), ("state", state)) if value is not None}
    empty = "no such jobs" if asked else "no jobs yet"
    endpoints = locate(directory)
    answer = get(endpoints, "coordinator", f"/v1/jobs?{urlencode(asked)}", JobsOut)
    if not answer.jobs and role is not None:
        require_role(endpoints, role)
    print_answer(answer, as_json, lambda: show_list(answer, empty))


def show_list(answer: JobsOut, empty: str) -> None:
    """One line for each."""
    columns = ("job", "role", "algorithm", "state", "%", "reward", "USD", "created", "error")
    ids = listed_ids(job.training_job_id for job in answer.jobs)
    rows = [
        (
            ids[job.training_job_id],
            job.role,
            job.algorithm,
            job.state,
            job.progress.percent_complete if job.progress else None,
            job.metrics.reward_mean if job.metrics else None,
            job.resource_usage.cost_usd if job.resource_usage else None,
            job.created_at,
            job.error.message if job.error else None,
        )
        for job in answer.jobs
    ]
    print_table(columns, rows, empty)


@app.command()
def show(job: JobArgument, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Show one job: its facts, what it used, its figures with what is good and what bad, and the page of its curves."""
    endpoints = locate(directory)
    one = find_job(endpoints, job)
    attempts = [] if as_json else attempts_of(endpoints, one)
    print_answer(one, as_json, lambda: show_job(one, directory, attempts, page_of(endpoints, one)))


class AlgorithmCosts(msgspec.Struct, kw_only=True):
    """What the jobs of one algorithm used, all of their attempts."""

    algorithm: str
    jobs: int = 0
    completed: int = 0
    rows: int = 0
    """Trajectories, pairs or labels of their snapshots."""
    hours: float = 0.0
    """Wall time."""
    gpu_hours: float = 0.0
    tokens: int = 0
    """Of rows in train steps; of a search for a bundle, of its calls."""
    usd: float | None = None
    """The workers' time at their price (RATCHET_TRAINER_PRICE_PER_HOUR_USD), and calls of searches; None: no price."""

    def add(self, job: JobOut) -> None:
        """Count one job."""
        used, measured = job.resource_usage or ResourceUsage(), job.metrics or CurrentMetrics()
        self.jobs += 1
        self.completed += job.state == "completed"
        self.rows += job.trajectories or 0
        self.hours += (used.total_training_time_seconds or 0.0) / 3600
        self.gpu_hours += used.gpu_hours or 0.0
        self.tokens += used.tokens or measured.spent_tokens or 0
        known = [cost for cost in (self.usd, used.cost_usd, measured.spent_usd) if cost is not None]
        self.usd = sum(known) if known else None


class CostsAnswer(msgspec.Struct, kw_only=True):
    """The costs of trainings, by algorithm."""

    costs: list[AlgorithmCosts]


@app.command()
def costs(
    role: OptionalRole = None, since: Since = "30d", as_json: AsJson = False, directory: Directory = HERE
) -> None:
    """What trainings used, by algorithm: time, GPU hours, tokens and cost, in all and for each completed job.

    Jobs count when they were created, with all of their attempts. USD needs a price of the workers
    (RATCHET_TRAINER_PRICE_PER_HOUR_USD).
    """
    endpoints = locate(directory)
    asked = {"since": since_of(since).isoformat()} | ({"role": role} if role is not None else {})

    def page(offset: int) -> JobsOut:
        query = urlencode({**asked, "limit": PAGE, "offset": offset})
        return get(endpoints, "coordinator", f"/v1/jobs?{query}", JobsOut)

    answer = CostsAnswer(costs=costs_of(all_jobs(page)))
    print_answer(answer, as_json, lambda: show_costs(answer.costs))


def all_jobs(page_from: Callable[[int], JobsOut]) -> list[JobOut]:
    """Every job of a list, by its pages from an offset on. One that is created meanwhile moves others to the next."""
    jobs: dict[str, JobOut] = {}
    offset = 0
    while True:
        page = page_from(offset)
        jobs |= {job.training_job_id: job for job in page.jobs}
        offset += len(page.jobs)
        if not page.jobs or offset >= page.total:
            return [*jobs.values()]


def costs_of(jobs: Sequence[JobOut]) -> list[AlgorithmCosts]:
    """By algorithm, in the order of their names."""
    made: dict[str, AlgorithmCosts] = {}
    for job in sorted(jobs, key=lambda job: job.algorithm):
        made.setdefault(job.algorithm, AlgorithmCosts(algorithm=job.algorithm)).add(job)
    return list(made.values())


def show_costs(costs: Sequence[AlgorithmCosts]) -> None:
    """One line for each algorithm; `each`: of the completed jobs."""
    columns = ("algorithm", "jobs", "completed", "rows", "hours", "GPU h", "tokens", "USD", "h each", "USD each")
    rows = [
        (
            *(row.algorithm, row.jobs, row.completed, row.rows, row.hours, row.gpu_hours, row.tokens, row.usd),
            row.hours / row.completed if row.completed else None,
            row.usd / row.completed if row.completed and row.usd is not None else None,
        )
        for row in costs
    ]
    print_table(columns, rows, "no such jobs")


def page_of(endpoints: Endpoints, job: JobOut) -> str | None:
    """The address of its curves; none without a console."""
    try:
        return f"{endpoints.url('console')}/#/training/{job.training_job_id}"
    except NoStack:
        return None


def find_job(endpoints: Endpoints, name: str) -> JobOut:
    """The job. Raises `NotFound`, with the command that lists jobs, or `Rejected`."""
    job_id = job_named(endpoints, name)
    try:
        return get(endpoints, "coordinator", f"/v1/jobs/{job_id}", JobOut)
    except NotFound as error:
        raise no_job(job_id) from error


def attempts_of(endpoints: Endpoints, job: JobOut) -> Sequence[AttemptRecord]:
    """The attempts of a job; none, and a line that says why, where the servers cannot be asked."""
    try:
        objects, job_id = objects_of(endpoints, job.role), job.training_job_id
        history = ask_warehouse(endpoints, lambda warehouse: training_history(warehouse, objects, job_id), job.role)
        return history.attempts
    except RatchetError as error:
        errors.print(f"no attempts: {error}", markup=False)
        return []


def show_job(job: JobOut, directory: Path, attempts: Sequence[AttemptRecord] = (), page: str | None = None) -> None:
    """The facts of a job in reading order, its figures, and the worker's error without its traceback.

    `page`: the address of its curves.
    """
    facts = facts_of(job)
    print_facts({**facts, "notes": plan_lines(str(facts["notes"])) if facts["notes"] else None})
    for title, part in (("progress", job.progress), ("artifacts", job.artifacts)):
        if part is not None and (members := msgspec.to_builtins(part)):
            console.print(f"\n{title}")
            print_facts(members, indent=2)
    if len(attempts) > 1:
        columns = ("attempt", "state", "seconds", "GPU h", "GB", "USD", "last step", "worker", "error")
        tried = [
            (
                attempt.number,
                attempt.state,
                attempt.total_training_time_seconds,
                attempt.gpu_hours,
                attempt.peak_memory_gb,
                attempt.cost_usd,
                attempt.last_step,
                attempt.worker,
                attempt.error or None,
            )
            for attempt in attempts
        ]
        print_section(columns, tried)
    figures = [(name, value, sentence_of(name, value)) for name, value in figures_of(job).items()]
    print_section(("figure", "value", "what it is"), figures)
    if page is not None:
        console.print(f"\ncurves: {page}", markup=False, soft_wrap=True)
    if job.state == "completed":
        console.print(f"\n{next_step(job, directory)}", markup=False)


def next_step(job: JobOut, directory: Path) -> str:
    """The command that leads to what a completed job made: no role lists a reward model, or what is not offered."""
    made = job.artifacts
    if made is not None and made.final_checkpoint is not None and (made.kind == REWARD_MODEL or not job.request.offer):
        export = follow_up("policies", "export", made.final_checkpoint, directory=directory)
        what = "reward model" if made.kind == REWARD_MODEL else "policy"
        return f"`{export}` writes the {what} that it made, which no role lists"
    return f"`{follow_up('policies', 'list', job.role, directory=directory)}` shows the policy that it made"
