"""`ratchet train` and `cancel`: ask the coordinator for a training, wait for it, and stop it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer

from ratchet.cli.api import get, post
from ratchet.cli.data_options import asked_filter, snapshot_of, takes_data
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.ids import job_named, no_job, snapshot_named
from ratchet.cli.jobs import show_job
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, JobArgument, RolesArgument, json_file, options_beside
from ratchet.cli.output import (
    console,
    errors,
    follow_up,
    plan_lines,
    print_answer,
    print_dry_run,
    print_json,
    print_table,
    progress,
)
from ratchet.cli.prompt_options import Asked, stored_search, takes_search
from ratchet.cli.waiting import Timeout, Waiting, goes_on, require_wait, until
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.contract.snapshot import EXECUTIONS
from ratchet.core.contract.state import ENDED
from ratchet.core.errors import NotFound, RatchetError, Rejected, Unavailable
from ratchet.core.rules.algorithms import dataset_format
from ratchet.core.rules.job_facts import state_of

app = typer.Typer()

BaseModel = Annotated[
    str,
    typer.Option(
        help="`stable`, the s3:// uri of a policy's manifest, or a model's directory or name. The worker loads"
        " it: a worker on another machine is the first to see whether it exists.",
    ),
]
Algorithm = Annotated[
    str,
    typer.Option(help="sft, rloo, ppo, dpo, ...: any that workers offer; `auto`: what `ratchet plan` proposes first."),
]
Parameters = Annotated[
    list[str] | None, typer.Option("--set", help="Hyperparameter NAME=VALUE, repeatable: learning_rate=1e-5.")
]
Snapshot = Annotated[str | None, typer.Option(help="Train on exactly this: as in `dataset show`.")]
Request = Annotated[Path | None, typer.Option(help="JSON file with a whole request instead of these options.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when the job has ended; exit code 3 unless it completed.")]

GEPA = "gepa"
AUTO = "auto"
"""In the place of an algorithm: what the planner proposes."""
TRAINER = "trainer_worker"
"""The embedded stack's worker: it loads base models from this machine."""


@app.command()
@takes_data
@takes_search
def train(
    context: typer.Context,
    role: RolesArgument = None,
    algorithm: Algorithm = AUTO,
    base_model: BaseModel = "stable",
    *,
    dataset: dict[str, object],
    search: Asked | None = None,
    snapshot: Snapshot = None,
    priority: Annotated[str, typer.Option(help="low, normal, high or urgent.")] = "normal",
    holdout_size: Annotated[
        float | None,
        typer.Option(help="Share of the data to hold out, to compare the result with the start on."),
    ] = None,
    no_offer: Annotated[bool, typer.Option("--no-offer", help="Store the policy, but make it no candidate.")] = False,
    parameter: Parameters = None,
    request: Request = None,
    wait: Wait = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Start a training job, of several roles one each. Exit code 3: not every role has one.

    `--algorithm gepa` trains nothing and needs no GPU: it looks for better instructions, by a reflector that reads what
    went wrong with train tasks and recorded conversations, and keeps those that do best on validation tasks.

    With --request the file is sent as it is: only --wait, --timeout, --dry-run and the file's own role go with it.
    """
    require_wait(timeout, wait=wait)
    body: dict[str, object]
    roles = list(dict.fromkeys(role or [DEFAULT_ROLE]))
    if holdout_size is not None and math.isnan(holdout_size):  # JSON has none: it would be left out
        raise typer.BadParameter("--holdout-size is no number")
    if search is None and algorithm == GEPA and request is None:
        raise typer.BadParameter("gepa needs --reflector, --train-tasks and --validation-tasks")
    if request is not None:
        beside = options_beside(context, "role", "request", "wait", "timeout", "dry_run")
        body = whole_request(request, role or [], beside)
    else:
        body = {
            "algorithm": algorithm,
            "role": roles[0],
            "base_model": base_model,
            "hyperparameters": hyperparameters(parameter or []),
            "requester": "ratchet train",
            "dataset": dataset
            if snapshot is None and dataset_format(algorithm) != EXECUTIONS
            else asked_filter(dataset)
            if snapshot is None
            else {
                **asked_filter(dataset),
                "source": "s3",
                "snapshot": snapshot_of(snapshot_named(locate(directory), snapshot)),
            },
            "priority": priority,
            **({"offer": False} if no_offer else {}),
            **({"evaluation": {"holdout_size": holdout_size}} if holdout_size is not None else {}),
            **({"prompts": stored_search(locate(directory), roles[0], search)} if search is not None else {}),
        }
    if request is None and len(roles) > 1:
        bodies = [body | {"role": name} for name in roles]
        submit_each(directory, bodies, wait=wait, timeout_s=timeout, dry_run=dry_run, as_json=as_json)
    else:
        submit(directory, body, wait=wait, timeout_s=timeout, dry_run=dry_run, as_json=as_json)


@app.command()
def cancel(
    job: JobArgument,
    now: Annotated[
        bool,
        typer.Option("--now", help="End it at once, without a further checkpoint; also one that is asked to stop."),
    ] = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Cancel a job; a running one stops after its train step, with a checkpoint that `resume` goes on from."""
    cancelled = _changed(directory, job, f"cancel{'?now=true' if now else ''}")
    done = f"job {cancelled.training_job_id} of {cancelled.role} is {state_of(cancelled)}"
    print_answer(cancelled, as_json, done)


@app.command()
def resume(job: JobArgument, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Let a cancelled or failed job go on from its newest checkpoint, with the same data."""
    resumed = _changed(directory, job, "resume")
    goes_on = f"attempt {resumed.attempt} goes on from its checkpoint"
    done = f"job {resumed.training_job_id} of {resumed.role} is {state_of(resumed)}: {goes_on}"
    print_answer(resumed, as_json, done)


def _changed(directory: Path, job: str, how: str) -> JobOut:
    endpoints = locate(directory)
    job_id = job_named(endpoints, job, acts=True)
    try:
        return post(endpoints, "coordinator", f"/v1/jobs/{job_id}/{how}", JobOut)
    except NotFound as error:
        raise no_job(job_id) from error


def submit(
    directory: Path, body: dict[str, object], *, wait: bool, timeout_s: float | None, dry_run: bool, as_json: bool
) -> None:
    """Send a request; with `dry_run` only have it checked, and show it; with `wait` return when its job has ended."""
    endpoints = locate(directory)
    endpoints.require()
    body = _with_place(endpoints, body)
    job = post(endpoints, "coordinator", f"/v1/jobs{'?dry_run=true' if dry_run else ''}", JobOut, body)
    noted = job.request.metadata.notes if job.request.metadata is not None else None
    planned = noted if body.get("algorithm") == AUTO else None
    if dry_run or not as_json:  # else the document has them
        for finding in job.findings or ():
            errors.print(f"warning: {finding}", markup=False)
    if dry_run:
        print_dry_run(f"POST {endpoints.url('coordinator')}/v1/jobs", body, as_json, planned)
        return
    for line in plan_lines(planned) if planned else ():
        errors.print(line, markup=False)
    if wait:
        job = wait_for(endpoints, job, timeout_s, directory, quiet=as_json)
    if as_json:
        print_json(job)
    elif wait:
        show_job(job, directory)
    else:
        look = follow_up("jobs", "show", job.training_job_id, directory=directory)
        console.print(f"job {job.training_job_id} is {awaiting(job)}; `{look}` follows it", markup=False)
    if wait and job.state != "completed":
        raise typer.Exit(ExitCode.PARTLY)


class RolesAnswer(msgspec.Struct, kw_only=True):
    """What came of a request for several roles."""

    jobs: dict[str, JobOut]
    """By role."""
    refused: dict[str, str]
    """By role that has none: why not."""


def submit_each(
    directory: Path,
    bodies: Sequence[dict[str, object]],
    *,
    wait: bool,
    timeout_s: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send the requests of several roles: one that is refused keeps no other from its job."""
    endpoints = locate(directory)
    endpoints.require()
    answer = RolesAnswer(jobs={}, refused={})
    for body in bodies:
        role = str(body["role"])
        try:
            path = "/v1/jobs?dry_run=true" if dry_run else "/v1/jobs"
            answer.jobs[role] = post(endpoints, "coordinator", path, JobOut, _with_place(endpoints, body))
        except Unavailable:
            raise
        except RatchetError as error:
            answer.refused[role] = str(error)
    if wait and not dry_run:
        answer.jobs = {
            role: wait_for(endpoints, job, timeout_s, directory, quiet=as_json) for role, job in answer.jobs.items()
        }

    def show() -> None:
        rows: list[tuple[str, str | None, str, str | None]] = [
            (
                role,
                None if dry_run else job.training_job_id,
                "would be queued" if dry_run else state_of(job),
                "; ".join(job.findings or ()) or None,
            )
            for role, job in answer.jobs.items()
        ]
        rows += [(role, None, "refused", why) for role, why in answer.refused.items()]
        print_table(("role", "job", "state", "because"), rows, "")

    print_answer(answer, as_json, show)
    is_whole = not answer.refused and (dry_run or not wait or all(j.state == "completed" for j in answer.jobs.values()))
    if not is_whole:
        raise typer.Exit(ExitCode.PARTLY)


def _with_place(endpoints: Endpoints, body: dict[str, object]) -> dict[str, object]:
    """The request with a base model that its worker finds."""
    if not isinstance(base_model := body.get("base_model"), str):
        return body
    trains_here = endpoints.record is not None and TRAINER in endpoints.record.services
    return body | {"base_model": located(base_model, trains_here=trains_here)}


def wait_for(endpoints: Endpoints, job: JobOut, timeout_s: float | None, directory: Path, *, quiet: bool) -> JobOut:
    """The job once it has ended, or the time is up. Interrupting the wait does not cancel the job, and says so."""
    name = job.training_job_id
    if not quiet:
        errors.print(f"job {name} is {awaiting(job)}", markup=False)
    with progress(f"{job.algorithm} of {job.role}", quiet=quiet) as bar:

        def show(seen: JobOut) -> None:
            percent = seen.progress.percent_complete if seen.progress is not None else None
            bar(percent or 0, None if percent is None else 100, standing(seen))

        path = f"/v1/jobs/{job.training_job_id}"
        follow, cancel = (follow_up(*words, name, directory=directory) for words in (("jobs", "show"), ("cancel",)))
        with goes_on(f"job {name}", f"`{follow}` follows it, `{cancel}` ends it"):
            return until(
                has_ended,
                job,
                lambda answer_s: get(endpoints, "coordinator", path, JobOut, timeout_s=answer_s),
                show,
                Waiting(timeout_s),
            )


def awaiting(job: JobOut) -> str:
    """The state of a job, and for which hours it waits."""
    hours = job.request.start_hours if job.state == "queued" and job.priority in ("low", "normal") else None
    return job.state if hours is None else f"{job.state}, to start within the hours {hours} (UTC)"


def has_ended(job: JobOut) -> bool:
    """Whether nothing goes on any more."""
    return job.state in ENDED


def standing(job: JobOut) -> str:
    """The state of a job, its train step and its loss, as far as they are known."""
    step = f", step {job.progress.current_step}" if job.progress is not None and job.progress.current_step else ""
    loss = f", loss {job.metrics.loss:.4g}" if job.metrics is not None and job.metrics.loss is not None else ""
    return f"{state_of(job)}{step}{loss}"


def hyperparameters(options: list[str]) -> dict[str, object]:
    """`NAME=VALUE` options as a JSON object; a value is read as JSON, or else is text. `lora.r=8` nests, and
    1e3 is a whole number.

    Raises `typer.BadParameter`.
    """
    made: dict[str, Any] = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"--set takes NAME=VALUE, not {option!r}")
        *path, last = name.split(".")
        target = made
        for part in path:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise typer.BadParameter(f"--set {option}: {part} already has a value of its own")
        try:
            read: object = msgspec.json.decode(value)
            is_whole = isinstance(read, float) and read.is_integer() and "." not in value
            target[last] = int(cast(float, read)) if is_whole else read
        except (msgspec.DecodeError, RecursionError):
            target[last] = value
    return made


def located(base_model: str, *, trains_here: bool) -> str:
    """The base model for workers: a directory by its whole path, for they run elsewhere; anything else as it is.

    Raises `NotFound` for the path of a directory that does not exist: for a relative path, and for any path if
    `trains_here`, that is, if the stack's own worker would look for it on this machine.
    """
    path = Path(base_model)
    if os.path.isdir(base_model):  # noqa: PTH112 - unlike pathlib's, it refuses no text
        return str(path.resolve())
    # A model's name on a hub is `model` or `owner/model`: these can be nothing but paths.
    looks_like_path = base_model[:1] in {"/", ".", "~"} or base_model[-1:] == "/" or base_model.count("/") > 1
    if looks_like_path and "://" not in base_model and (trains_here or not path.is_absolute()):
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise NotFound(f"base_model (`--base-model`) {base_model}: there is no such directory{where}")
    return base_model


def whole_request(path: Path, roles: Sequence[str], beside: Sequence[str]) -> dict[str, object]:
    """A file's request, which nothing beside it changes. Raises `typer.BadParameter` for other options or roles."""
    if beside:
        raise typer.BadParameter(f"{', '.join(beside)}: not beside --request, whose file is sent as it is")
    body = read_request(path)
    if roles and {*roles} != {body.get("role", DEFAULT_ROLE)}:
        raise typer.BadParameter(
            f"{path} is a request for {body.get('role', DEFAULT_ROLE)}, not for {', '.join(roles)}"
        )
    return body


def read_request(path: Path) -> dict[str, object]:
    """A request from a JSON file. Raises `NotFound` or `Rejected`."""
    document = json_file(path)
    if not isinstance(document, dict):
        raise Rejected(f"{path} is not a JSON object")
    return cast(dict[str, object], document)
