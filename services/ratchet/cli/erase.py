"""`ratchet erase`: a person's data leaves every store, and what has learned from it is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.bus.message import decode
from ratchet.cli.api import get, post
from ratchet.cli.completion import complete_role
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory, checked_role, json_file
from ratchet.cli.output import console, errors, print_answer, print_facts, print_table
from ratchet.cli.waiting import Timeout, Waiting, goes_on, require_wait, until
from ratchet.core.contract.erasure import AGENT, AWAITS_APPROVAL, DONE, SESSION, TRAJECTORY, USER
from ratchet.core.contract.http.erasures import ErasureOut, ReceiptOut
from ratchet.core.errors import Rejected
from ratchet.core.rules.texts import USER_REF, user_ref

app = typer.Typer()

USER_KEY = "RATCHET_GATEWAY_USER_KEY"
HOW = "`ratchet optout add --user NAME` prints the ref, and exports have it as user_ref"


@app.command()
def erase(
    user: Annotated[
        str | None, typer.Option(metavar="REF", help="A user, by the `user_ref` that `ratchet optout add` prints.")
    ] = None,
    user_name: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"A user, by name: with the gateways' {USER_KEY} set here.")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="A session.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="An agent.")] = None,
    trajectory: Annotated[str | None, typer.Option(metavar="ID", help="A trajectory, by its whole id.")] = None,
    receipt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Carry the erasure of a receipt out again: after a restore.")
    ] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Take a receipt that this installation's key has not signed.")
    ] = False,
    role: Annotated[
        str | None, typer.Option(help="Only of this role.", callback=checked_role, autocompletion=complete_role)
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Train stable policies anew that learned from it, then remove the old.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how much would be erased, and erase nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done, and print the receipt.")] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Erase all data of a user, session, agent or trajectory from every store, by ids and never by text.

    Messages and rows go within a minute, the last files of ClickHouse within twelve. Then rows of snapshots are written
    anew without them, and policies that learned from them are named with how much of their data it was.
    """
    require_wait(timeout, wait=wait)
    endpoints = locate(directory)
    by_name = None if user_name is None else ref_of(endpoints, user_name)
    named = [(USER, user), (USER, by_name), (SESSION, session), (AGENT, agent), (TRAJECTORY, trajectory)]
    body = {**asked_for(named, receipt, role), "retrain": retrain, "unverified": unverified}
    path = f"/v1/erasures?dry_run={str(dry_run).lower()}"
    erasure = post(endpoints, "coordinator", path, ErasureOut, body)
    if dry_run:
        print_answer(erasure, as_json, f"{erasure.ids} runs or opinions would be erased, and what belongs to them")
        return
    if wait:
        erasure = waited(endpoints, erasure, timeout, as_json=as_json)
    signed = get(endpoints, "coordinator", f"/v1/erasures/{erasure.erasure_id}/receipt", ReceiptOut)
    document = {"erasure": erasure, "receipt": signed}
    print_answer(document, as_json, lambda: show(erasure))
    if wait and (erasure.phase != DONE or erasure.damaged):
        raise typer.Exit(ExitCode.PARTLY)


def ref_of(endpoints: Endpoints, name: str) -> str:
    """The `user_ref` of a name. Raises `Rejected` where the key is not known here."""
    ref = user_ref(endpoints.env.get(USER_KEY) or None, name)
    if ref is None:
        raise Rejected(f"--user-name needs {USER_KEY} here, as the gateways have it; {HOW}")
    return ref


def asked_for(named: Sequence[tuple[str, str | None]], receipt: Path | None, role: str | None) -> dict[str, Any]:
    """The body of the request: `Any`, JSON. Raises `typer.BadParameter` unless exactly one thing is named, and
    `Rejected` for what is no `user_ref`."""
    given = [(kind, ref) for kind, ref in named if ref is not None]
    if len(given) + (receipt is not None) != 1:
        raise typer.BadParameter("name one of --user, --user-name, --session, --agent, --trajectory and --receipt")
    if receipt is not None:
        return of_receipt(receipt)
    kind, ref = given[0]
    if kind == USER and not USER_REF.fullmatch(ref):
        raise Rejected(f"{ref[:80]!r} is no `user_ref` (64 hexadecimal digits): --user-name takes a name; {HOW}")
    return {"kind": kind, "ref": ref, "role": role}


def of_receipt(path: Path) -> dict[str, Any]:
    """The erasure that a receipt is about, and the receipt. Raises `Rejected` for another file."""
    document: Any = json_file(path)
    try:
        signed = document["receipt"] if isinstance(document["receipt"], dict) else document
        erasure = decode(signed["receipt"])["erasure"]
        return {"kind": erasure["kind"], "ref": erasure["ref"], "role": erasure.get("role"), "receipt": signed}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Rejected(f"{path} is no receipt of an erasure: {error}") from error


def waited(endpoints: Endpoints, erasure: ErasureOut, timeout_s: float | None, *, as_json: bool) -> ErasureOut:
    """The erasure when it is done, or when the time is up."""
    path = f"/v1/erasures/{erasure.erasure_id}"

    def ask(answer_s: float) -> ErasureOut:
        return get(endpoints, "coordinator", path, ErasureOut, timeout_s=answer_s)

    shown: list[str] = []

    def show_phase(seen: ErasureOut) -> None:
        if not as_json and shown[-1:] != [seen.phase]:
            shown.append(seen.phase)
            errors.print(f"{seen.phase}: waiting for what comes next", markup=False)

    with goes_on("the erasure", f"GET {path} of the coordinator"):
        return until(lambda seen: seen.phase == DONE, erasure, ask, show_phase, Waiting(timeout_s))


def show(erasure: ErasureOut) -> None:
    """What was removed so far, and what had learned from it."""
    print_facts(
        {
            "erasure": erasure.erasure_id,
            "of": f"{erasure.kind} {erasure.ref}",
            "phase": erasure.phase,
            "ids": erasure.ids,
            "removed": ", ".join(f"{number} {place}" for place, number in sorted(erasure.removed.items())) or "nothing",
        }
    )
    if erasure.phase == AWAITS_APPROVAL:
        console.print("it begins once another person gives the same command, within a day")
    for uri in erasure.damaged:
        console.print(f"incomplete: {uri} is damaged. Remove it, or put it back from a backup", markup=False)
    rows = [
        (policy.name or policy.digest[:12], policy.kind, policy.role, f"{policy.share:.2%}", policy.removed)
        for policy in erasure.tainted
    ]
    print_table(("learned from it", "kind", "role", "share of its data", "removed"), rows, "no policy learned from it")
    for role, job in erasure.trainings.items():
        console.print(f"{role} is trained anew by job {job}", markup=False)
