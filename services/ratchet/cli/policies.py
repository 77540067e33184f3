"""`ratchet policies`: every registered policy, its origin, and its files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.tree import Tree

from ratchet.cli.api import get, read_role, read_roles, segment
from ratchet.cli.completion import complete_policy
from ratchet.cli.connections import objects_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.options import AsJson, Directory, DryRun, OptionalRoleArgument
from ratchet.cli.output import Bar, console, print_answer, print_dry_run, print_table, progress
from ratchet.contract.http.models import LineageOut, SnapshotPart
from ratchet.contract.http.rollouts import RolePoliciesOut
from ratchet.contract.state import PolicyVersion
from ratchet.errors import NotFound, Rejected
from ratchet.rules.arms import parse_model
from ratchet.service.discovery import DEFAULT_DIRECTORY
from ratchet.stores.policies import read_policy
from ratchet.stores.policy_files import default_directory, export_policy, require_empty

app = typer.Typer(no_args_is_help=True)

GONE, UNNAMED = "(not stored any more)", "an unnamed rater"

Policy = Annotated[
    str,
    typer.Argument(
        help="`support@3`, its full name, or a role: the policy that serves it now.", autocompletion=complete_policy
    ),
]


@app.command("list")
def list_policies(
    role: OptionalRoleArgument = None, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """List policies, newest last."""
    answer = read_roles(locate(directory), role)
    print_answer(answer, as_json, lambda: show_list(answer.roles))


@app.command()
def show(
    policy: Policy,
    trajectories: Annotated[
        int, typer.Option(min=0, max=500, help="List at most so many trajectories and preferences.")
    ] = 5,
    parents: Annotated[int, typer.Option(min=0, max=20, help="Also walk to so many of its ancestors.")] = 0,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Show a policy and its origin: job, snapshot, trajectories, rewards, raters. --json has the event ids."""
    endpoints = locate(directory)
    lineage = read_lineage(endpoints, find_policy(endpoints, policy), trajectories, parents)
    print_answer(lineage, as_json, lambda: console.print(lineage_tree(lineage)))


@app.command()
def export(
    policy: Policy,
    target: Annotated[
        Path | None,
        typer.Argument(help="A directory that is new or empty; by default artifacts/<algorithm>/<policy>."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Copy a policy's files and manifest out of the object store, each verified by its digest."""
    endpoints = locate(directory)
    chosen = find_policy(endpoints, policy)
    target = target or export_target(endpoints, chosen)
    if dry_run:
        require_exportable(endpoints, chosen, target)
        print_dry_run(f"write {chosen.name} to {target}", {"uri": chosen.uri, "digest": chosen.digest}, as_json)
        return
    with progress(f"exporting {chosen.name}", quiet=as_json) as bar:
        files = export_files(endpoints, chosen, target, bar)
    document = {"policy": chosen.name, "directory": str(target), "files": files}
    print_answer(document, as_json, f"{chosen.name}: {len(files)} files in {target}")


def find_policy(endpoints: Endpoints, name: str) -> PolicyVersion:
    """The policy that `support@3`, `support@3-1a2b3c4d` or `support` (its stable one) names. Raises `NotFound`."""
    try:
        named = parse_model(name)
    except ValueError as error:
        raise Rejected(str(error)) from error
    answer = read_role(endpoints, named.role)
    stable = answer.route.stable if answer.route is not None else None
    version = named.version if named.version is not None or stable is None else stable.version
    if version is None:
        raise NotFound(f"no policy serves {named.role} yet; name one: {named.role}@VERSION")
    for policy in answer.policies:
        if policy.version == version and policy.digest.startswith(named.digest or ""):
            return policy
    raise NotFound(f"no such policy: {name}")


def export_target(endpoints: Endpoints, policy: PolicyVersion) -> Path:
    """The default directory of an export: it names the policy's algorithm."""
    return default_directory(read_policy(objects_of(endpoints), policy.uri, policy.digest), policy.name)


def require_exportable(endpoints: Endpoints, policy: PolicyVersion, target: Path) -> None:
    """Raise the error that an export would end with, and write nothing."""
    require_empty(target)
    read_policy(objects_of(endpoints), policy.uri, policy.digest)


def export_files(endpoints: Endpoints, policy: PolicyVersion, target: Path, bar: Bar) -> list[str]:
    """Write the policy's files to `target`; returns their paths. Raises `Rejected` unless it is new or empty."""
    return export_policy(objects_of(endpoints), policy.uri, target, policy.digest, bar)


def show_list(roles: Iterable[RolePoliciesOut]) -> None:
    """One line for each policy."""
    columns = ("role", "policy", "stage", "algorithm", "kind", "samples", "created", "reason")
    rows = [
        (p.role, p.name, p.stage, p.algorithm, p.kind, p.training_samples, p.created_at, p.reason)
        for role in roles
        for p in role.policies
    ]
    print_table(columns, rows, "no policies yet")


def read_lineage(endpoints: Endpoints, policy: PolicyVersion, trajectories: int, parents: int) -> LineageOut:
    """The policy with its origin; lists hold at most `trajectories` items. Raises `NotFound`."""
    path = f"/v1/models/{segment(policy.role)}/{policy.version}/lineage"
    return get(endpoints, "coordinator", f"{path}?limit={trajectories}&parents={parents}", LineageOut)


def lineage_tree(lineage: LineageOut) -> Tree:
    """The lineage for people: the policy at the root, the data that it learned from at the leaves."""
    policy = lineage.policy
    tree = Tree(f"[bold]{escape(policy.name)}[/] {policy.stage} ({escape(policy.state)}), {policy.status}")
    plain = ("algorithm", "kind", "base_model", "uri", "digest", "final_reward", "training_samples", "reason")
    _add_facts(
        tree,
        [
            *((name, getattr(policy, name)) for name in plain),
            ("parent", f"{policy.role}@{policy.parent}" if policy.parent is not None else None),
            ("metrics", ", ".join(f"{name} {value:.4g}" for name, value in (policy.metrics or {}).items())),
            ("gates", _pairs((name, verdict.get("outcome")) for name, verdict in (policy.gate or {}).items())),
        ],
    )
    if (job := lineage.job) is not None:
        history = " [dim](from the history)[/]" if job.from_history else ""
        branch = tree.add(f"job {job.training_job_id} {escape(job.state)}{history}")
        times = [("created", job.created_at), ("finished", job.finished_at)]
        at = [(name, f"{value.astimezone():%Y-%m-%d %H:%M:%S}") for name, value in times if value]
        _add_facts(branch, [("algorithm", job.algorithm), ("asked by", f"{job.requester} ({job.trigger})"), *at])
    if lineage.snapshot is not None:
        _add_snapshot(tree, lineage, lineage.snapshot)
    for sentence in lineage.missing:
        tree.add(f"[yellow]missing:[/] {escape(sentence)}")
    if lineage.parent is not None:
        tree.add(lineage_tree(lineage.parent))
    return tree


def _add_snapshot(tree: Tree, lineage: LineageOut, snapshot: SnapshotPart) -> None:
    branch = tree.add(f"snapshot {snapshot.digest} of {snapshot.rows} {escape(snapshot.format)}")
    _add_facts(
        branch,
        [
            ("uri", snapshot.uri),
            ("reward_function", snapshot.reward_function),
            ("reward_transform", snapshot.reward_transform),
            ("parent_policy", snapshot.parent_policy),
            ("filters", _pairs(snapshot.filters.items())),
            ("left_out", _pairs(snapshot.left_out.items())),
            ("raters", _pairs(snapshot.raters.items())),
        ],
    )
    items: list[str] = []
    for item in lineage.trajectories.items:
        reward = item.reward
        worth = f"reward {reward.total:.3f} (revision {reward.revision})" if reward else "no reward"
        facts = ", ".join(
            fact for fact in (item.task and f"task {item.task}", item.source, item.outcome, worth) if fact
        )
        items.append(f"{item.trajectory_id} {facts if item.event_id else GONE}")
    _add_list(branch, "trajectories", lineage.trajectories.total, items)
    items = [
        f"{item.preference_id} {f'{item.source} by {item.rater or UNNAMED}' if item.event_id else GONE}"
        for item in lineage.preferences.items
    ]
    _add_list(branch, "preferences", lineage.preferences.total, items)
    for one in lineage.rewards:
        branch.add(
            f"rewards of {escape(one.function)}: {one.trajectories} trajectories, mean {one.mean:.3f},"
            f" newest revision {one.newest_revision}"
        )
    raters = [(f"{one.rater or one.source or 'unnamed'} ({one.kind})", one.count) for one in lineage.feedback]
    _add_facts(branch, [("feedback", _pairs(raters))])


def _add_list(branch: Tree, kind: str, total: int, items: Sequence[str]) -> None:
    if not total:
        return
    shown = f", {len(items)} shown" if len(items) < total else ""
    leaves = branch.add(f"{total} {kind}{shown}")
    for line in items:
        leaves.add(escape(line))


def _pairs(pairs: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs)


def _add_facts(tree: Tree, facts: Iterable[tuple[str, object]]) -> None:
    for name, value in facts:
        if value not in (None, ""):
            tree.add(f"[dim]{name}[/] {escape(f'{value:.4g}' if isinstance(value, float) else str(value))}")
