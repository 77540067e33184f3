"""`ratchet analyze`: look at a role now."""

from __future__ import annotations

import typer

from ratchet.cli.api import post
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, RoleArgument
from ratchet.cli.output import console, follow_up, print_answer, print_dry_run, print_facts, progress
from ratchet.cli.patterns import ANALYST
from ratchet.core.contract.http.analyst import AnalysisIn, AnalysisOut

app = typer.Typer()

ANALYSIS_S = 600.0
"""As long as the analyst gives a run."""


@app.command()
def analyze(role: RoleArgument, dry_run: DryRun = False, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Look for patterns in a role's newest trajectories now; it happens every hour anyway."""
    endpoints, body = locate(directory), AnalysisIn(role=role)
    if dry_run:
        print_dry_run(f"POST {endpoints.url(ANALYST)}/v1/analyses", body, as_json)
        return
    with progress(f"looking at {role}", quiet=as_json):
        answer = post(endpoints, ANALYST, "/v1/analyses", AnalysisOut, body, timeout_s=ANALYSIS_S)
    look = follow_up("patterns", "list", role, directory=directory)

    def show() -> None:
        facts = {
            "from": answer.since,
            "until": answer.until,
            "trajectories": " and ".join(map(str, answer.trajectories)),
            "hypotheses": answer.tested,
            "new": tuple(answer.opened) or 0,
            "known": len(answer.known),
            "closed": len(answer.closed),
            "note": answer.note,
        }
        print_facts(facts)
        console.print(f"`{look}` lists what is open", markup=False)

    print_answer(answer, as_json, show)
