"""`ratchet policies`: every registered policy, where it comes from, and its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.tree import Tree

from ratchet.cli.api import call, require_role, segment
from ratchet.cli.completion import complete_policy
from ratchet.cli.connections import objects_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.options import AsJson, Directory, DryRun, OptionalRoleArgument
from ratchet.cli.output import Bar, console, print_answer, print_dry_run, print_table, progress, when
from ratchet.errors import NotFound, Rejected
from ratchet.rules.arms import parse_model
from ratchet.service.discovery import DEFAULT_DIRECTORY
from ratchet.stores.policies import read_policy
from ratchet.stores.policy_files import default_directory, export_policy, require_empty

app = typer.Typer(no_args_is_help=True)

Policy = Annotated[
    str,
    typer.Argument(help="`support@3`, its full name, or a role: what serves it now.", autocompletion=complete_policy),
]

Json = dict[str, Any]
"""A decoded answer."""


@app.command("list")
def list_policies(
    role: OptionalRoleArgument = None, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """List policies, newest last."""
    answer = read_roles(locate(directory), role)
    print_answer(answer, as_json, lambda: show_list(answer["roles"]))


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
    """Show a policy and what it was made of: job, snapshot, trajectories, rewards, raters. --json has the event ids."""
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
    found = find_policy(endpoints, policy)
    target = target or export_target(endpoints, found)
    if dry_run:
        require_exportable(endpoints, found, target)
        print_dry_run(f"write {found['name']} to {target}", {"uri": found["uri"], "digest": found["digest"]}, as_json)
        return
    with progress(f"exporting {found['name']}", quiet=as_json) as bar:
        files = export_files(endpoints, found, target, bar)
    document = {"policy": found["name"], "directory": str(target), "files": files}
    print_answer(document, as_json, f"{found['name']}: {len(files)} files in {target}")


def read_roles(endpoints: Endpoints, role: str | None) -> Json:
    """`{"roles": [{role, route, policies}]}` of one role or of all. Raises `NotFound` for a role nothing knows."""
    if role is None:
        return call(endpoints, "deployer", "GET", "/v1/policies")
    return {"roles": [read_role(endpoints, role)]}


def read_role(endpoints: Endpoints, role: str) -> Json:
    """`{role, route, policies}`, without policies while the role has none. Raises `NotFound`."""
    try:
        return call(endpoints, "deployer", "GET", f"/v1/policies/{segment(role)}")
    except NotFound:
        require_role(endpoints, role)
        return {"role": role, "route": None, "policies": []}


def find_policy(endpoints: Endpoints, name: str) -> Json:
    """The policy that `support@3`, `support@3-1a2b3c4d` or `support` (what serves it) names. Raises `NotFound`."""
    try:
        wanted = parse_model(name)
    except ValueError as error:
        raise Rejected(str(error)) from error
    answer = read_role(endpoints, wanted.role)
    stable = (answer["route"] or {}).get("stable") or {}
    version = wanted.version if wanted.version is not None else stable.get("version")
    if version is None:
        raise NotFound(f"no policy serves {wanted.role} yet; name one: {wanted.role}@VERSION")
    for policy in answer["policies"]:
        if policy["version"] == version and policy["digest"].startswith(wanted.digest or ""):
            return policy
    raise NotFound(f"no such policy: {name}")


def export_target(endpoints: Endpoints, policy: Json) -> Path:
    """Where an export goes unless somebody says otherwise: by how the policy was made."""
    return default_directory(read_policy(objects_of(endpoints), policy["uri"], policy["digest"]), policy["name"])


def require_exportable(endpoints: Endpoints, policy: Json, target: Path) -> None:
    """Raise what an export would be refused with; nothing is written."""
    require_empty(target)
    read_policy(objects_of(endpoints), policy["uri"], policy["digest"])


def export_files(endpoints: Endpoints, policy: Json, target: Path, bar: Bar) -> list[str]:
    """The paths of the files written to `target`. Raises `Rejected` when there is something already."""
    objects = objects_of(endpoints)
    return export_policy(objects, policy["uri"], target, policy["digest"], bar)


def show_list(roles: list[Json]) -> None:
    """One line for each policy."""
    columns = ("role", "policy", "stage", "algorithm", "kind", "samples", "created", "reason")
    rows = [
        (
            one["role"],
            one["name"],
            one["stage"],
            one.get("algorithm"),
            one["kind"],
            one.get("training_samples"),
            when(one["created_at"]),
            one.get("reason"),
        )
        for role in roles
        for one in role["policies"]
    ]
    print_table(columns, rows, "no policies yet")


def read_lineage(endpoints: Endpoints, policy: Json, trajectories: int, parents: int) -> Json:
    """Everything that the policy was made of; lists hold at most `trajectories` items. Raises `NotFound`."""
    path = f"/v1/models/{segment(policy['role'])}/{policy['version']}/lineage"
    return call(endpoints, "coordinator", "GET", f"{path}?limit={trajectories}&parents={parents}")


def lineage_tree(lineage: Json) -> Tree:
    """The answer for people: the policy at the root, the data it learned from at the leaves."""
    tree = Tree(_policy(lineage["policy"]))
    _add_facts(tree, _facts_of_policy(lineage["policy"]))
    _add_job(tree, lineage["job"])
    _add_snapshot(tree, lineage)
    for sentence in lineage["missing"]:
        tree.add(f"[yellow]missing:[/] {escape(sentence)}")
    if lineage["parent"] is not None:
        tree.add(lineage_tree(lineage["parent"]))
    return tree


def _policy(policy: Json) -> str:
    return f"[bold]{escape(policy['name'])}[/] {policy['stage']} ({escape(policy['state'])}), {policy['status']}"


def _facts_of_policy(policy: Json) -> Iterator[tuple[str, object]]:
    for name in ("algorithm", "kind", "base_model", "uri", "digest", "final_reward", "training_samples", "reason"):
        yield name, policy.get(name)
    parent = policy.get("parent")
    yield "parent", f"{policy['role']}@{parent}" if parent is not None else None
    yield "metrics", ", ".join(f"{name} {value:.4g}" for name, value in (policy.get("metrics") or {}).items())
    yield "gates", ", ".join(f"{name} {said.get('outcome')}" for name, said in (policy.get("gate") or {}).items())


def _add_job(tree: Tree, job: Json | None) -> None:
    if job is None:
        return
    history = " [dim](from the history)[/]" if job["from_history"] else ""
    branch = tree.add(f"job {job['training_job_id']} {escape(job['state'])}{history}")
    asked = f"{job['requester']} ({job['trigger']})"
    times = [("created", job.get("created_at")), ("finished", job.get("finished_at"))]
    told = [(name, f"{when(value).astimezone():%Y-%m-%d %H:%M:%S}") for name, value in times if value]
    _add_facts(branch, [("algorithm", job["algorithm"]), ("asked by", asked), *told])


def _add_snapshot(tree: Tree, lineage: Json) -> None:
    snapshot = lineage["snapshot"]
    if snapshot is None:
        return
    branch = tree.add(f"snapshot {snapshot['digest']} of {snapshot['rows']} {escape(snapshot['format'])}")
    told = {name: snapshot[name] for name in ("uri", "reward_function", "reward_transform", "parent_policy")}
    counts = {name: _counts(snapshot[name].items()) for name in ("left_out", "raters")}
    filters = ", ".join(f"{name} {value}" for name, value in snapshot["filters"].items())
    _add_facts(branch, [*told.items(), ("filters", filters), *counts.items()])
    _add_list(branch, "trajectories", lineage["trajectories"], _trajectory)
    _add_list(branch, "preferences", lineage["preferences"], _preference)
    for one in lineage["rewards"]:
        branch.add(
            f"rewards of {escape(one['function'])}: {one['trajectories']} trajectories, mean {one['mean']:.3f},"
            f" newest revision {one['newest_revision']}"
        )
    said = [
        (f"{one['rater'] or one['source'] or 'unnamed'} ({one['kind']})", one["count"]) for one in lineage["feedback"]
    ]
    _add_facts(branch, [("feedback", _counts(said))])


def _add_list(branch: Tree, what: str, page: Json, line: Any) -> None:  # `Any`: one of the two functions below
    if not page["total"]:
        return
    items = page["items"]
    shown = f", {len(items)} shown" if len(items) < page["total"] else ""
    leaves = branch.add(f"{page['total']} {what}{shown}")
    for item in items:
        leaves.add(escape(line(item)))


def _trajectory(item: Json) -> str:
    if item.get("event_id") is None:
        return f"{item['trajectory_id']} (not stored any more)"
    reward = item.get("reward")
    worth = f"reward {reward['total']:.3f} (revision {reward['revision']})" if reward else "no reward"
    told = (f"task {item['task']}" if item.get("task") else None, item.get("source"), item.get("outcome"), worth)
    return f"{item['trajectory_id']} {', '.join(part for part in told if part)}"


def _preference(item: Json) -> str:
    if item.get("event_id") is None:
        return f"{item['preference_id']} (not stored any more)"
    return f"{item['preference_id']} {item['source']} by {item.get('rater') or 'nobody named'}"


def _counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts)


def _add_facts(tree: Tree, facts: Iterable[tuple[str, object]]) -> None:
    for name, value in facts:
        if value not in (None, ""):
            tree.add(f"[dim]{name}[/] {escape(f'{value:.4g}' if isinstance(value, float) else str(value))}")
