"""`ratchet analyze` and `ratchet report`: look at a role now, and what a week of self-learning brought."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.api import get, post, segment
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, RoleArgument
from ratchet.cli.output import console, follow_up, print_answer, print_dry_run, print_facts
from ratchet.cli.patterns import ANALYST
from ratchet.core.contract.http.analyst import AnalysisIn, AnalysisOut, LearningReportOut

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


@app.command()
def report(
    role: RoleArgument,
    html: Annotated[bool, typer.Option("--html", help="As HTML, to mail or to publish.")] = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Print what the last seven days changed in a role, what that earned, and what was taken back, as Markdown."""
    answer = get(locate(directory), ANALYST, f"/v1/learning/{segment(role)}/report", LearningReportOut)
    text = answer.html if html else answer.markdown
    print_answer(answer, as_json, lambda: console.print(text, markup=False, end="", soft_wrap=True))
