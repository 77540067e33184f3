"""`ratchet train`, `jobs` and `cancel`: training jobs, through the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.completion import complete_job
from ratchet.cli.options import AsJson, Directory, DryRun, OptionalRole, RoleArgument
from ratchet.service.discovery import DEFAULT_DIRECTORY

Samples = Annotated[int, typer.Option(min=1, help="Most trajectories to train on.")]
MinReward = Annotated[float | None, typer.Option(help="Only trajectories with at least this reward.")]
Sources = Annotated[
    list[str] | None, typer.Option(help="Only trajectories from this source, repeatable: import:tau-bench.")
]
BaseModel = Annotated[
    str,
    typer.Option(
        help="`stable`, the s3:// uri of a policy's manifest, or a model's directory or name. The worker loads"
        " it: where none runs on this machine, only the worker sees whether it is there.",
    ),
]
Parameters = Annotated[
    list[str] | None, typer.Option("--set", help="Hyperparameter NAME=VALUE, repeatable: learning_rate=1e-5.")
]
Request = Annotated[Path | None, typer.Option(help="JSON file with a whole request instead of these options.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when the job has ended; exit code 3 unless it completed.")]
Timeout = Annotated[
    float | None, typer.Option(min=1, help="With --wait: wait no longer than so many seconds. The job goes on.")
]
JobId = Annotated[str, typer.Argument(help="The job's id.", autocompletion=complete_job)]
State = Annotated[str | None, typer.Option(help="Only jobs in this state: queued, running, completed, failed, ...")]


def train(
    role: RoleArgument = "default",
    algorithm: Annotated[str, typer.Option(help="sft, rloo, ppo, dpo, ...: what the workers offer.")] = "rloo",
    base_model: BaseModel = "stable",
    samples: Samples = 1000,
    min_reward: MinReward = None,
    source: Sources = None,
    priority: Annotated[str, typer.Option(help="low, normal, high or urgent.")] = "normal",
    parameter: Parameters = None,
    request: Request = None,
    wait: Wait = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Start a training job."""
    from ratchet.cli.training import Asked, submit
    from ratchet.cli.training_request import dataset, hyperparameters, read_request, request_body

    if request is not None:
        body = read_request(request)
    else:
        body = request_body(role, algorithm, base_model, hyperparameters(parameter or []))
        body["dataset"] = dataset(samples, min_reward=min_reward, sources=source)
        body["priority"] = priority
    submit(directory, body, Asked(wait=wait, timeout_s=timeout, dry_run=dry_run, as_json=as_json))


def jobs(
    job_id: Annotated[str | None, typer.Argument(help="One job, in full.", autocompletion=complete_job)] = None,
    role: OptionalRole = None,
    state: State = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """List training jobs, newest first, or show one."""
    from ratchet.cli.training import list_jobs, show_job

    if job_id is not None:
        show_job(directory, job_id, as_json)
    else:
        list_jobs(directory, {"role": role, "state": state}, as_json)


def cancel(job_id: JobId, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Cancel a job; a running one stops within seconds."""
    from ratchet.cli.training import cancel_job

    cancel_job(directory, job_id, as_json)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(train)
    app.command()(jobs)
    app.command()(cancel)
