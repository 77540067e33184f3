"""`ratchet bundles`: what policies change of the calls that agents make; made, looked at, and kept as plain files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from ratchet.cli.api import get, post, segment
from ratchet.cli.bundle_options import given_parts
from ratchet.cli.candidates import WaitForGates, code_of, follow, read_candidate
from ratchet.cli.completion import complete_policy
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, RoleArgument, with_options
from ratchet.cli.output import console, errors, print_answer, print_dry_run, print_json, print_table
from ratchet.cli.policies import Policy, find_policy
from ratchet.cli.rollout import Actor, Reason, order_of
from ratchet.cli.waiting import Timeout, Waiting, require_wait
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel, SamplingValues
from ratchet.core.contract.http.rollouts import BundleOut, RolePoliciesOut
from ratchet.core.contract.state import PolicyStage, PolicyVersion
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.rules.bundle_parts import Change, changes, parts_of
from ratchet.core.rules.bundles import check_bundle
from ratchet.core.stores.bundle_files import files_in, read_folder, write_folder
from ratchet.core.stores.policy_files import require_empty

app = typer.Typer(no_args_is_help=True)

STABLE = "stable"
ENDED = frozenset({PolicyStage.REFUSED, PolicyStage.ROLLED_BACK, PolicyStage.SUPERSEDED})
"""Stages of a candidate that was tried, and is not tried again because a file still says so."""

Other = Annotated[
    str, typer.Argument(help="The policy to compare it with, named alike.", autocompletion=complete_policy)
]


@app.command()
@with_options("parts", given_parts)
def create(
    role: RoleArgument,
    parts: Bundle,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="stable|VERSION", help="A policy whose other parts stay; else there are none."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="UPSTREAM/MODEL",
            help="Who answers: a model of an upstream, or an adapter of the role, such as support@3.",
            autocompletion=complete_policy,
        ),
    ] = None,
    reason: Reason = "made by hand",
    actor: Actor = None,
    wait: WaitForGates = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Register a bundle as the role's next policy: it goes through gates and canary like any other.

    Exit code 3: a policy that serves or is a candidate changes the same, so nothing was registered.
    """
    require_wait(timeout, wait=wait)
    endpoints = locate(directory)
    known = read_known(endpoints, role)
    base = bundle_of(endpoints, role, _version(from_, known)) if from_ is not None else NO_BUNDLE
    answering = _model(endpoints, model) if model is not None else base.model
    merged = _merged(base, msgspec.structs.replace(parts, model=answering))
    order = Order(merged, actor, reason, dry_run, Waiting(timeout) if wait else None)
    check_bundle(order.bundle)
    raise typer.Exit(_register(endpoints, known, order, as_json))


@app.command()
def show(policy: Policy, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Show what a policy changes of calls: a line for each part, then its texts."""
    named = find_bundle(locate(directory), policy)
    print_answer(named, as_json, lambda: show_parts(named))


@app.command()
def diff(policy: Policy, other: Other, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Compare two policies: a line for each part that differs, then the difference of their texts."""
    endpoints = locate(directory)
    before, after = find_bundle(endpoints, policy), find_bundle(endpoints, other)
    differing = changes(before.bundle, after.bundle)
    document = {"before": before.policy.name, "after": after.policy.name, "changes": differing}
    title = f"{before.policy.name} -> {after.policy.name}"
    print_answer(document, as_json, lambda: show_changes(title, differing))


@app.command()
def export(
    policy: Policy,
    folder: Annotated[Path, typer.Argument(help="A folder that is new or empty.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="In the place of the bundle that the folder holds.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Write a policy's bundle as plain files, which a repository may hold and `apply` reads."""
    named = find_bundle(locate(directory), policy)
    if replace and folder.exists():
        files_in(folder)  # raises where it holds anything else
    else:
        require_empty(folder)
    if dry_run:
        print_dry_run(f"write {named.policy.name} to {folder}", named.bundle, as_json)
        return
    written = write_folder(named.bundle, folder)
    document = {"policy": named.policy.name, "directory": str(folder), "files": written}
    print_answer(document, as_json, f"{named.policy.name}: {', '.join(written)} in {folder}")


@app.command()
def apply(
    role: RoleArgument,
    folder: Annotated[Path, typer.Argument(help="A folder as `export` writes one.")],
    reason: Reason = "applied from files",
    actor: Actor = None,
    wait: WaitForGates = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Register a folder's bundle, if it changes anything against stable or the role's newest policy; for CI.

    Exit code 3: it changes nothing, or the newest policy changed the same and was refused or rolled back. With --wait
    also: its gates have left it to a person, or the time was up.
    """
    require_wait(timeout, wait=wait)
    bundle, endpoints = read_folder(folder), locate(directory)
    known = read_known(endpoints, role)
    made = _as_registered(endpoints, known, bundle)
    for policy in _compared(known):
        if made == bundle_of(endpoints, role, policy.version):
            raise typer.Exit(_unchanged(policy, as_json))
    check_bundle(bundle)
    order = Order(bundle, actor, reason, dry_run, Waiting(timeout) if wait else None)
    raise typer.Exit(_register(endpoints, known, order, as_json))


class Order(NamedTuple):
    """What shall be registered, by whom and why."""

    bundle: Bundle
    actor: str | None
    reason: str
    dry_run: bool
    waiting: Waiting | None
    """For the verdict of its gates; None: not at all."""

    def body(self) -> dict[str, object]:
        """The request to the deployer."""
        return {"bundle": self.bundle, **order_of(self.actor, self.reason)}


def read_known(endpoints: Endpoints, role: str) -> RolePoliciesOut:
    """The role's route and policies; none of a role that has had none yet."""
    try:
        return get(endpoints, "deployer", f"/v1/policies/{segment(role)}", RolePoliciesOut)
    except NotFound:
        return RolePoliciesOut(role=role, route=None, policies=[])


def find_bundle(endpoints: Endpoints, policy: str) -> BundleOut:
    """A policy by its name, and what it changes. Raises as `find_policy` does."""
    named = find_policy(endpoints, policy)
    return get(endpoints, "deployer", f"/v1/policies/{segment(named.role)}/{named.version}/bundle", BundleOut)


def bundle_of(endpoints: Endpoints, role: str, version: int) -> Bundle:
    """What a version of a role changes; version 0 of any role: nothing."""
    if version == 0:
        return NO_BUNDLE
    return get(endpoints, "deployer", f"/v1/policies/{segment(role)}/{version}/bundle", BundleOut).bundle


def show_parts(named: BundleOut) -> None:
    """A line for each part, then the texts."""
    policy, parts = named.policy, parts_of(named.bundle)
    console.print(f"{policy.name} {policy.stage}, {policy.created_at.astimezone():%Y-%m-%d %H:%M}", markup=False)
    print_table(("part", "change"), [(name, part.words) for name, part in parts.items()], "calls as agents send them")
    for name, part in parts.items():
        if part.text:
            console.print(f"\n--- {name}\n{part.text}", markup=False)


def show_changes(title: str, differing: Sequence[Change]) -> None:
    """A line for each part that differs, then the differences of texts."""
    console.print(title, markup=False)
    print_table(("part", "change"), [(change.part, change.words) for change in differing], "they change the same")
    for change in differing:
        if change.diff:
            console.print("\n".join(("", f"--- {change.part}", *change.diff[2:])), markup=False)


def _register(endpoints: Endpoints, known: RolePoliciesOut, order: Order, as_json: bool) -> ExitCode:
    """Have the deployer register it, and say how it differs from what serves the role now."""
    path, stable = f"/v1/policies/{segment(known.role)}/bundles", _stable(known)
    differing = changes(bundle_of(endpoints, known.role, stable), _as_registered(endpoints, known, order.bundle))
    checked = {"dry_run": True} if order.dry_run else {}
    made = post(endpoints, "deployer", path, BundleOut, {**order.body(), **checked})
    if made.warning:
        errors.print(f"warning: {made.warning}", markup=False)
    if not made.new:
        return _unchanged(made.policy, as_json)
    if order.dry_run:
        print_dry_run(f"POST {endpoints.url('deployer')}{path}", order.body(), as_json)
        return ExitCode.DONE
    candidate = read_candidate(endpoints, made.policy)
    if not as_json:
        show_changes(
            f"{made.policy.name} is registered: {candidate.standing}; beside {known.role}@{stable}:", differing
        )
    if order.waiting is not None:
        candidate = follow(endpoints, candidate, order.waiting, quiet=as_json)
    document = {"policy": made.policy.name, "version": made.policy.version, "new": True, "changes": differing}
    document |= {"stage": candidate.policy.stage, "standing": candidate.standing}
    if as_json:
        print_json(document)
    elif order.waiting is not None:
        console.print(f"{made.policy.name}: {candidate.standing}", markup=False)
    else:
        console.print(f"`ratchet rollout status {known.role}` shows the verdict of its gates", markup=False)
    return ExitCode.DONE if order.waiting is None else code_of(candidate)


def _unchanged(policy: PolicyVersion, as_json: bool) -> ExitCode:
    again = f": `ratchet rollout start {policy.role} {policy.version}` tries it again" if policy.stage in ENDED else ""
    document = {"policy": policy.name, "version": policy.version, "new": False, "changes": []}
    print_answer(document, as_json, f"nothing new: {policy.name} ({policy.stage}) changes the same{again}")
    return ExitCode.PARTLY


def _stable(known: RolePoliciesOut) -> int:
    """The version that serves the role; 0: calls as agents send them."""
    return known.route.stable.version if known.route is not None and known.route.stable is not None else 0


def _compared(known: RolePoliciesOut) -> list[PolicyVersion]:
    """The policy that serves the role, and its newest one."""
    newest = max((policy.version for policy in known.policies), default=0)
    return [policy for policy in known.policies if policy.version in (_stable(known), newest)]


def _as_registered(endpoints: Endpoints, known: RolePoliciesOut, bundle: Bundle) -> Bundle:
    """The bundle with the model that it gets: without one of its own that of stable, if that has one."""
    stable = bundle_of(endpoints, known.role, _stable(known))
    return msgspec.structs.replace(bundle, model=bundle.model or stable.model)


def _version(text: str, known: RolePoliciesOut) -> int:
    if text == STABLE:
        return _stable(known)
    versions = {str(policy.version): policy.version for policy in known.policies}
    if text not in versions:
        raise NotFound(
            f"{known.role} has no version {text[:80]}: --from takes `{STABLE}` or {', '.join(versions) or 0}"
        )
    return versions[text]


def _model(endpoints: Endpoints, named: str) -> BundleModel:
    """`openai/gpt-5-mini`, or a policy of the role. Raises `NotFound` or `Rejected`."""
    upstream, slash, name = named.partition("/")
    if slash:
        if not upstream or not name:
            raise typer.BadParameter(f"--model takes UPSTREAM/MODEL or a policy, not {named!r}")
        return BundleModel(upstream=upstream, name=name)
    policy = find_policy(endpoints, named)
    if policy.kind == "bundle":
        raise Rejected(f"{policy.name} is no model but a bundle: `--from {policy.version}` takes its model")
    return BundleModel(name=policy.name, digest=policy.digest)


def _merged(base: Bundle, given: Bundle) -> Bundle:
    """The base with the parts that are given in the place of its own."""
    return msgspec.structs.replace(
        base,
        model=given.model,
        instructions=given.instructions or base.instructions,
        tools={**base.tools, **given.tools},
        examples=given.examples or base.examples,
        defaults=_both(base.defaults, given.defaults),
        overrides=_both(base.overrides, given.overrides),
        response_format=given.response_format or base.response_format,
    )


def _both(base: SamplingValues | None, given: SamplingValues | None) -> SamplingValues | None:
    if base is None or given is None:
        return given or base
    return msgspec.structs.replace(base, **msgspec.to_builtins(given))
