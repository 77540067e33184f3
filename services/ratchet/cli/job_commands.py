"""`ratchet train`, `jobs` and `cancel`: training jobs, through the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.cli.options import DEFAULT_DIRECTORY, AsJson, Directory


def train(
    role: Annotated[str, typer.Argument(help="Whose policy to train.")] = "default",
    algorithm: Annotated[str, typer.Option(help="sft, rloo, ppo, ...")] = "rloo",
    base_model: Annotated[str, typer.Option(help="`stable`, a manifest's s3:// uri, or a model's name.")] = "stable",
    samples: Annotated[int, typer.Option(min=1, help="Most trajectories to train on.")] = 1000,
    min_reward: Annotated[float | None, typer.Option(help="Only trajectories with at least this reward.")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Only trajectories from this source, repeatable: import:tau-bench.")
    ] = None,
    priority: Annotated[str, typer.Option(help="low, normal, high or urgent.")] = "normal",
    parameter: Annotated[
        list[str] | None, typer.Option("--set", help="Hyperparameter NAME=VALUE, repeatable: learning_rate=1e-5.")
    ] = None,
    request: Annotated[
        Path | None, typer.Option(help="JSON file with a whole request instead of these options.")
    ] = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Start a training job."""
    from ratchet.cli.api import call
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console, print_json
    from ratchet.cli.training_request import hyperparameters, read_request

    if request is not None:
        body = read_request(request)
    else:
        chosen = {"min_reward": min_reward, "sources": source}
        body = {
            "algorithm": algorithm,
            "role": role,
            "base_model": base_model,
            "dataset": {
                "sample_size": samples,
                "filter": {name: value for name, value in chosen.items() if value is not None},
            },
            "hyperparameters": hyperparameters(parameter or []),
            "priority": priority,
            "requester": "ratchet train",
        }
    job = call(locate(directory), "coordinator", "POST", "/v1/jobs", body)
    if as_json:
        print_json(job)
    else:
        console.print(
            f"job {job['training_job_id']} is {job['state']}; `ratchet jobs {job['training_job_id']}` follows it"
        )


def jobs(
    job_id: Annotated[str | None, typer.Argument(help="One job, in full.")] = None,
    role: Annotated[str | None, typer.Option(help="Only jobs of this role.")] = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """List training jobs, or show one."""
    from ratchet.cli.api import call
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json, print_table

    endpoints = locate(directory)
    if job_id is not None:
        print_json(call(endpoints, "coordinator", "GET", f"/v1/jobs/{job_id}"))
        return
    found = call(endpoints, "coordinator", "GET", f"/v1/jobs?role={role}" if role else "/v1/jobs")["jobs"]
    if as_json:
        print_json(found)
        return
    columns = ("job", "role", "algorithm", "state", "%", "reward", "created", "error")
    print_table(columns, [_row(job) for job in found], "no jobs yet")


def cancel(
    job_id: Annotated[str, typer.Argument(help="The job to cancel.")], directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """Cancel a job; a running one stops within seconds."""
    from ratchet.cli.api import call
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console

    job = call(locate(directory), "coordinator", "POST", f"/v1/jobs/{job_id}/cancel")
    console.print(f"job {job_id} is {job['state']}{', cancel requested' if job.get('cancel_requested') else ''}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(train)
    app.command()(jobs)
    app.command()(cancel)


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    from ratchet.cli.output import when

    progress, metrics, error = job.get("progress") or {}, job.get("metrics") or {}, job.get("error") or {}
    return (
        job["training_job_id"],
        job["role"],
        job["algorithm"],
        job["state"],
        progress.get("percent_complete"),
        metrics.get("reward_mean"),
        when(job["created_at"]),
        error.get("message"),
    )
