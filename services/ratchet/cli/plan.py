"""`ratchet plan`: what to train next, and why."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec
import typer

from ratchet.cli.api import get, require_role
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, RoleOption
from ratchet.cli.output import console, follow_up, print_answer, print_facts, print_table
from ratchet.cli.training import GEPA
from ratchet.core.contract.http.jobs import PlanOut
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.datasets.domain.selection import HELD_OUT

app = typer.Typer()


@app.command()
def plan(role: RoleOption = DEFAULT_ROLE, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Propose an algorithm and its data for a role, and say why not the others."""
    endpoints = locate(directory)
    asked = urlencode({"role": role, "held_out": HELD_OUT})
    proposal = get(endpoints, "coordinator", f"/v1/plan?{asked}", PlanOut)
    if proposal.algorithm is None and not any(msgspec.to_builtins(proposal.shape).values()):
        require_role(endpoints, role)

    def show() -> None:
        chosen = proposal.algorithm or "nothing yet"
        print_facts({"role": proposal.role, "proposal": chosen, "because": proposal.why})
        if proposal.filter is not None:
            print_facts({"data": msgspec.json.encode(proposal.filter).decode()})
        console.print()
        print_table(("not", "because"), sorted(proposal.rejected.items()), "no other algorithm is offered")
        console.print()
        print_facts(msgspec.to_builtins(proposal.shape))
        if proposal.algorithm == GEPA:
            options = "--reflector MODEL --train-tasks FILE --validation-tasks FILE"
            begin = follow_up("train", role, "--algorithm", GEPA, directory=directory)
            console.print(f"\n`{begin} {options}` starts it", markup=False)
        elif proposal.algorithm is not None:
            begin = follow_up("train", role, "--algorithm", "auto", directory=directory)
            console.print(f"\n`{begin}` starts it; a role without a policy needs --base-model, too", markup=False)

    print_answer(proposal, as_json, show)
