"""Asks the coordinator for training, follows jobs and shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import typer

from ratchet.cli.api import call
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.output import (
    console,
    follow_up,
    print_dry_run,
    print_facts,
    print_json,
    print_table,
    progress,
    when,
)
from ratchet.cli.roles import require_role
from ratchet.cli.training_request import located
from ratchet.cli.waiting import Job, Waiting, until_ended
from ratchet.errors import NotFound

TRAINER = "trainer_worker"
"""The embedded stack's worker: it loads base models from this machine."""
JOB_ID = re.compile(r"[0-9A-Za-z_.-]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """How a job is asked for."""

    wait: bool
    timeout_s: float | None
    """Longest wait; None: until the job ends."""
    dry_run: bool
    as_json: bool


def submit(directory: Path, body: dict[str, Any], asked: Asked) -> None:
    """Send a request, or have it checked and show it; wait for its job's end where that was asked for."""
    endpoints = locate(directory)
    endpoints.require()
    if isinstance(base_model := body.get("base_model"), str):
        trains_here = endpoints.record is not None and TRAINER in endpoints.record.services
        body = body | {"base_model": located(base_model, trains_here=trains_here)}
    if asked.dry_run:
        call(endpoints, "coordinator", "POST", "/v1/jobs?dry_run=true", body)
        print_dry_run(f"POST {endpoints.url('coordinator')}/v1/jobs", body, asked.as_json)
        return
    job = call(endpoints, "coordinator", "POST", "/v1/jobs", body)
    if asked.wait:
        job = wait_for(endpoints, job, asked.timeout_s, quiet=asked.as_json)
    if asked.as_json:
        print_json(job)
    elif asked.wait:
        _show(job, directory)
    else:
        look = follow_up("jobs", job["training_job_id"], directory=directory)
        console.print(f"job {job['training_job_id']} is {job['state']}; `{look}` follows it", markup=False)
    if asked.wait and job["state"] != "completed":
        raise typer.Exit(ExitCode.PARTLY)


def wait_for(endpoints: Endpoints, job: Job, timeout_s: float | None, *, quiet: bool) -> Job:
    """The job once it has ended, or the time is up. Interrupting the wait does not cancel the job."""
    with progress(f"{job['algorithm']} of {job['role']}", quiet=quiet) as bar:

        def tell(seen: Job) -> None:
            percent = (seen.get("progress") or {}).get("percent_complete")
            bar(percent or 0, None if percent is None else 100, seen["state"])

        path = _path(job["training_job_id"])
        return until_ended(job, lambda: call(endpoints, "coordinator", "GET", path), tell, Waiting(timeout_s))


def list_jobs(directory: Path, chosen: dict[str, str | None], as_json: bool) -> None:
    """Jobs, newest first. Raises `NotFound` for a role that nothing knows."""
    endpoints = locate(directory)
    query = urlencode({name: value for name, value in chosen.items() if value is not None})
    answer = call(endpoints, "coordinator", "GET", f"/v1/jobs?{query}")
    found = answer["jobs"]
    if not found and chosen["role"] is not None:
        require_role(endpoints, chosen["role"])
    if as_json:
        print_json(answer)
        return
    columns = ("job", "role", "algorithm", "state", "%", "reward", "created", "error")
    print_table(columns, [_row(job) for job in found], "no such jobs" if query else "no jobs yet")


def show_job(directory: Path, job_id: str, as_json: bool) -> None:
    """One job in full."""
    job = call(locate(directory), "coordinator", "GET", _path(job_id))
    if as_json:
        print_json(job)
    else:
        _show(job, directory)


def cancel_job(directory: Path, job_id: str, as_json: bool) -> None:
    """Cancel; the coordinator refuses what has ended."""
    job = call(locate(directory), "coordinator", "POST", f"{_path(job_id)}/cancel")
    if as_json:
        print_json(job)
    else:
        console.print(f"job {job_id} is {job['state']}{', cancel requested' if job.get('cancel_requested') else ''}")


def _path(job_id: str) -> str:
    """Where the job is. Raises `NotFound` for what can be no job's id."""
    if not JOB_ID.fullmatch(job_id):
        raise NotFound(f"no such job: {job_id}")
    return f"/v1/jobs/{job_id}"


def _show(job: Job, directory: Path) -> None:
    """The facts of a job in reading order, its error as it was told, without the worker's traceback."""
    config, error = job["request"]["training_config"], job.get("error") or {}
    facts: dict[str, object] = {
        "job": job["training_job_id"],
        "role": job["role"],
        "algorithm": job["algorithm"],
        "state": f"{job['state']}{', cancel requested' if job.get('cancel_requested') else ''}",
        "error": f"{error['code']}: {error['message']}" if error else None,
        "attempt": job["attempt"] or None,
        "base model": config["base_model"],
        "continues": job.get("parent"),
        "trajectories": job.get("trajectories"),
        "worker": job.get("worker"),
        **{name: when(job[f"{name}_at"]) for name in ("created", "started", "finished") if job.get(f"{name}_at")},
        **{name: config.get("hyperparameters", {}).get(name) for name in config.get("hyperparameters", {})},
    }
    print_facts(facts)
    for title in ("progress", "metrics", "artifacts"):
        if job.get(title):
            console.print(f"\n{title}")
            print_facts(job[title], indent=2)
    if job["state"] == "completed":
        console.print(f"\n`{follow_up('policies', 'list', job['role'], directory=directory)}` shows what it made")


def _row(job: Job) -> tuple[object, ...]:
    progressed, metrics, error = job.get("progress") or {}, job.get("metrics") or {}, job.get("error") or {}
    return (
        job["training_job_id"],
        job["role"],
        job["algorithm"],
        job["state"],
        progressed.get("percent_complete"),
        metrics.get("reward_mean"),
        when(job["created_at"]),
        error.get("message"),
    )
