"""Where a policy comes from: asks the coordinator, and draws the answer as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from ratchet.cli.api import call, segment
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.output import when

Json = dict[str, Any]
"""A decoded answer, or a part of it."""


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
