"""`ratchet policies`: every registered policy, its origin, and its files."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.markup import escape
from rich.tree import Tree

from ratchet.bus.message import named_id
from ratchet.cli.api import get, post, read_role, read_roles, segment
from ratchet.cli.audited import record_read
from ratchet.cli.completion import complete_policy, complete_role
from ratchet.cli.connections import connected, objects_of, objects_of_roles, settings_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.ids import latest_in
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, OptionalRoleArgument, RoleArgument, checked_role
from ratchet.cli.output import Bar, console, errors, print_answer, print_dry_run, print_table, progress
from ratchet.cli.rollout import Actor, Reason, order_of
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.http.models import LineageOut, SnapshotPart
from ratchet.core.contract.http.rollouts import RolePoliciesOut
from ratchet.core.contract.policy_manifest import ADAPTER, MODEL, PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.training import Artifacts, StatusMetadata
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.rules.arms import parse_model
from ratchet.core.stores.adapter_import import Adapter, check_base, read_adapter, store_adapter
from ratchet.core.stores.policies import STORED, BlobStore, Policy as StoredPolicy, is_manifest_uri, read_policy
from ratchet.core.stores.policy_files import default_directory, export_policy, require_empty

app = typer.Typer(no_args_is_help=True)

TOOLS: Mapping[bool | None, str] = {
    True: "its engine's chat template shows it the tools of calls",
    False: "its engine's chat template shows it none: calls that offer some are refused",
}
"""What `takes_tools` means; nothing where it was not checked."""
_BEGUN = re.compile(r"(?P<name>[a-z0-9_-]{1,64}@[1-9]\d{0,8})-(?P<digest>[0-9a-f]{4,7})")
"""A policy's name with a part of its digest; with eight digits it is whole."""
GONE, UNNAMED = "(not stored any more)", "an unnamed rater"

Policy = Annotated[
    str,
    typer.Argument(
        help="`support@3`, its full name or the beginning of that, `support@latest`, `latest`, or a role: the policy"
        " that serves it now.",
        autocompletion=complete_policy,
    ),
]


@app.command("list")
def list_policies(role: OptionalRoleArgument = None, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List policies, newest last."""
    answer = read_roles(locate(directory), role)
    print_answer(answer, as_json, lambda: show_list(answer.roles))


@app.command()
def show(
    policy: Policy,
    trajectories: Annotated[
        int, typer.Option(min=0, max=500, help="List at most so many trajectories and preferences.")
    ] = 5,
    parents: Annotated[int, typer.Option(min=0, max=20, help="Generations of ancestors to show too.")] = 0,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Show a policy and its origin: job, snapshot, trajectories, rewards, raters. --json has the event ids."""
    endpoints = locate(directory)
    named = find_policy(endpoints, policy)
    path = f"/v1/models/{segment(named.role)}/{named.version}/lineage?limit={trajectories}&parents={parents}"
    lineage = get(endpoints, "coordinator", path, LineageOut)
    print_answer(lineage, as_json, lambda: console.print(lineage_tree(lineage)))


@app.command()
def export(
    policy: Annotated[
        str,
        typer.Argument(
            help="As in `show`, or the uri of a manifest: that of a reward model, which no role has.",
            autocompletion=complete_policy,
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Argument(
            help="A directory that is new or empty; by default artifacts/<algorithm>/<policy>, for a reward model"
            " artifacts/rm/<policy>."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Copy a policy's files and manifest out of the object store, each verified by its digest.

    The folder model/ has weights and tokenizer: transformers, PEFT and vLLM load it as it is. The base of an adapter
    that was trained on a stored model lies beside it, in base/.
    """
    endpoints = locate(directory)
    chosen = find_stored(endpoints, policy) if is_manifest_uri(policy) else find_policy(endpoints, policy)
    target = target or export_target(endpoints, chosen)
    if dry_run:
        require_exportable(endpoints, chosen, target)
        print_dry_run(f"write {chosen.name} to {target}", {"uri": chosen.uri, "digest": chosen.digest}, as_json)
        return
    with progress(f"exporting {chosen.name}", quiet=as_json) as bar:
        files = export_files(endpoints, chosen, target, bar)
    document = {"policy": chosen.name, "directory": str(target), "files": files}
    print_answer(document, as_json, f"{chosen.name}: {len(files)} files in {target}")


@app.command()
def remove(
    role: RoleArgument,
    reason: Reason = "removed by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Remove a role that no agent has called, with its bundles: one whose name was mistyped."""
    endpoints, path = locate(directory), f"/v1/policies/{segment(role)}/remove"
    order = {**order_of(actor, reason), **({"dry_run": True} if dry_run else {})}
    gone = post(endpoints, "deployer", path, RolePoliciesOut, order)
    if dry_run:
        print_dry_run(f"remove {', '.join([role, *(policy.name for policy in gone.policies)])}", gone, as_json)
        return
    print_answer(gone, as_json, f"removed {role}, with {len(gone.policies)} policies")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A directory as PEFT saves one: its configuration and safetensors.")],
    role: Annotated[str, typer.Option("--role", help="The role.", callback=checked_role, autocompletion=complete_role)],
    base: Annotated[
        str | None,
        typer.Option(help="Uri of its base's manifest, or the base's name; by default the base of the role's policy."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Offer an adapter made elsewhere as the role's next policy: it goes through gates and canary like any other.

    Only files are checked here, and no weights are loaded, so it has no probe: the gate compares no log-probabilities.
    """
    endpoints = locate(directory)
    adapter = read_adapter(source)
    objects = objects_of(endpoints, role)
    known = known_base(objects, base or role_base(endpoints, role), adapter)
    if warning := other_base(adapter, known.name):
        errors.print(warning, markup=False)
    what = f"{source}: rank {adapter.config['r']}, {len(adapter.tensors)} tensors, for {known.name}"
    if dry_run:
        print_dry_run(f"import {what}", {"role": role, "base_model": known.name}, as_json)
        return
    manifest = PolicyManifest(
        kind=ADAPTER,
        base_model=known.name,
        base_digest=known.digest,
        files=[],
        role=role,
        created_at=adapter.written_at,
        origin=f"{source.resolve().name} (made for {adapter.named_base or 'a base without a name'})",
    )
    with tempfile.TemporaryDirectory(prefix="import-") as work:
        policy = store_adapter(objects, adapter, manifest, Path(work))
    asyncio.run(announce(endpoints, policy))
    document = {"role": role, "uri": policy.uri, "digest": policy.digest, "base_model": known.name}
    done = f"stored as {policy.digest[:8]}, without a probe, and offered to {role}"
    print_answer(document, as_json, f"{what}: {done}, unless the role has it already")


class KnownBase(NamedTuple):
    """A base model as manifests name it; no digest for one by name."""

    name: str
    digest: str | None


def role_base(endpoints: Endpoints, role: str) -> str:
    """The base of the policy that serves the role: the model itself, or what its adapter is for. Raises `Rejected`."""
    answer = read_role(endpoints, role)
    stable = answer.route.stable if answer.route is not None else None
    serving = [policy for policy in answer.policies if stable is not None and policy.version == stable.version]
    if not serving:
        raise Rejected(f"no policy serves {role} yet: name the adapter's base with --base")
    return serving[0].base_model if serving[0].kind == ADAPTER else serving[0].uri


def other_base(adapter: Adapter, base: str) -> str | None:
    """A warning where the adapter names another base than the one that it is taken for."""
    if adapter.named_base in (None, "", base):
        return None
    return f"{adapter.directory} was made for {adapter.named_base}, and is taken for {base}: are they the same model?"


def known_base(objects: BlobStore, base: str, adapter: Adapter) -> KnownBase:
    """The base, which the adapter must fit. Raises `Rejected`, or `NotFound` for a manifest that is not stored."""
    if not is_manifest_uri(base):
        if adapter.named_base != base:
            raise Rejected(f"the adapter was made for {adapter.named_base}, not for {base}")
        return KnownBase(base, None)
    policy = read_policy(objects, base)
    if policy.manifest.kind != MODEL:
        raise Rejected(f"{base} is no model: name the base that the adapter was made for")
    config = next((file for file in policy.manifest.files if file.name == "config.json"), None)
    if config is not None:
        check_base(adapter, msgspec.json.decode(objects.get(config.uri, config.sha256), type=dict[str, Any]))
    return KnownBase(base, policy.digest)


async def announce(endpoints: Endpoints, policy: StoredPolicy) -> None:
    """Tell the deployer of it as of a completed training; the same adapter again is the same job, registered once."""
    manifest = policy.manifest
    async with connected(settings_of(endpoints, manifest.role)) as bus:
        await bus.publish(
            TrainingStatus(
                training_job_id=named_id("policies import", manifest.role, policy.digest),
                timestamp=manifest.created_at,
                status="completed",
                role=manifest.role,
                artifacts=Artifacts(final_checkpoint=policy.uri, digest=policy.digest, kind=manifest.kind),
                metadata=StatusMetadata(training_platform="import"),
            )
        )


def find_policy(endpoints: Endpoints, name: str) -> PolicyVersion:
    """The policy that `support@3`, `support@3-1a2b3c4d`, `support@latest` or `support` (its stable one) names.

    Raises `NotFound` or `Rejected`.
    """
    if (latest := latest_in(name)) is not None:
        policies = [policy for role in read_roles(endpoints, latest.role).roles for policy in role.policies]
        if not policies:
            raise NotFound(f"there is no policy{f' of {latest.role}' if latest.role else ''} yet")
        # Version 0, which is registered with the first bundle, is calls as agents send them: never news.
        return max(policies, key=lambda policy: (policy.version > 0, policy.created_at, policy.role, policy.version))
    if (begun := _BEGUN.fullmatch(name)) is not None:
        name, digest = begun["name"], begun["digest"]
    else:
        digest = ""
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
        if policy.version == version and policy.digest.startswith(named.digest or digest):
            return policy
    raise NotFound(f"no such policy: {name}; `ratchet policies list {named.role}` lists the role's")


class Stored(NamedTuple):
    """What an export writes: a registered policy, or a manifest by its uri."""

    name: str
    uri: str
    digest: str
    role: str


def find_stored(endpoints: Endpoints, uri: str) -> Stored:
    """The policy or reward model that a manifest describes. Raises `NotFound` or `Rejected`."""
    objects, roles = objects_of_roles(endpoints)
    stored = read_policy(objects, uri, kinds=STORED)
    role = stored.manifest.role
    if role not in roles:
        raise NotFound(f"no such object: {uri}")
    return Stored(f"{role}-{stored.digest[:8]}", uri, stored.digest, role)


def export_target(endpoints: Endpoints, policy: Stored | PolicyVersion) -> Path:
    """The default directory of an export: it names the policy's algorithm."""
    stored = read_policy(objects_of(endpoints, policy.role), policy.uri, policy.digest, STORED)
    return default_directory(stored, policy.name)


def require_exportable(endpoints: Endpoints, policy: Stored | PolicyVersion, target: Path) -> None:
    """Raise the error that an export would end with, and write nothing."""
    require_empty(target)
    read_policy(objects_of(endpoints, policy.role), policy.uri, policy.digest, STORED)


def export_files(endpoints: Endpoints, policy: Stored | PolicyVersion, target: Path, bar: Bar) -> list[str]:
    """Write the policy's files to `target`; returns their paths. Raises `Rejected` unless it is new or empty."""
    record_read(endpoints, "export_policy", policy.role, [policy.name])
    return export_policy(objects_of(endpoints, policy.role), policy.uri, target, policy.digest, bar)


def show_list(roles: Iterable[RolePoliciesOut]) -> None:
    """One line for each policy."""
    columns = ("role", "policy", "stage", "algorithm", "kind", "samples", "created", "reason")
    rows = [
        (p.role, p.name, p.stage, p.algorithm, p.kind, p.training_samples, p.created_at, p.reason)
        for role in roles
        for p in role.policies
    ]
    print_table(columns, rows, "no policies yet")


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
            ("tools", TOOLS.get(policy.takes_tools)),
            ("gates", _pairs((name, verdict.get("outcome")) for name, verdict in (policy.gate or {}).items())),
        ],
    )
    if (job := lineage.job) is not None:
        history = " [dim](from the history)[/]" if job.from_history else ""
        branch = tree.add(f"job {job.training_job_id} {escape(job.state)}{history}")
        times = [("created", job.created_at), ("finished", job.finished_at)]
        at = [(name, f"{value.astimezone():%Y-%m-%d %H:%M:%S}") for name, value in times if value]
        _add_facts(branch, [("algorithm", job.algorithm), ("asked by", f"{job.requester} ({job.trigger_reason})"), *at])
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
    for scored in lineage.rewards:
        branch.add(
            f"rewards of {escape(scored.function)}: {scored.trajectories} trajectories, mean {scored.mean:.3f},"
            f" newest revision {scored.newest_revision}"
        )
    raters = [(f"{given.rater or given.source or 'unnamed'} ({given.kind})", given.count) for given in lineage.feedback]
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
