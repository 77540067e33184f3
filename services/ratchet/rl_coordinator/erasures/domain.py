"""What an erasure is to snapshots and policies: which rows go, and what has learned from them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set as AbstractSet
from typing import Any

from msgspec.structs import replace

from ratchet.core.contract.erasure import RewrittenSnapshot, TaintedPolicy
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.snapshot import ExecutionRow, PairRow, ParquetFile, Row, SnapshotManifest

Ids = Collection[tuple[str, str]]
"""Roles and ids that an erasure covers."""

UNREACHABLE = (
    "backups and copies of the state that lie elsewhere: restore none that is older than this receipt without carrying"
    " the erasure out again (`ratchet erase --receipt`)",
    "what was exported, or sent on to other systems: files of `ratchet export`, trackers, traces, webhooks, providers",
    "files that people keep: task files, also those of the held-out gate, datasets, prompts",
    "spools of agents on other machines, until they send: then what is theirs is dropped",
    "conversations of the Responses API that an agent may continue: sealed with a key that the agent alone has, gone"
    " a day after their last call",
    "workflows that ended or are under way, with what their sub-tasks wrote, in the broker's bucket `workflows`: gone a"
    " day after they last changed",
    "bytes of messages that a stream had let go before, by age or because it was full: they stay in a file of the"
    " broker until it writes that file anew",
    "pairs and feedback that name no trajectory and no user",
    "numbers of calls, with the id of their run, and ids of pairs that a rater skipped",
    "messages that cannot be read, which name no one",
    "sub-agents and further conversations, in another role, of a run, where they name none of theirs",
    "files of the archive that are damaged, named in `damaged`",
)
"""What no command can remove, as every receipt says."""


def is_theirs(row: Row, role: str, ids: Ids) -> bool:
    """Whether a row of a snapshot of a role goes."""
    if isinstance(row, PairRow):
        named = (row.preference_id, row.chosen_trajectory_id, row.rejected_trajectory_id)
        return any((role, ref) in ids for ref in named if ref)
    return (role, row.workflow_id if isinstance(row, ExecutionRow) else row.trajectory_id) in ids


def theirs_in(manifest: SnapshotManifest, ids: Ids) -> int:
    """How many trajectories of a snapshot are erased."""
    return sum((manifest.role, trajectory_id) in ids for trajectory_id in manifest.trajectories)


def without(
    manifest: SnapshotManifest, ids: Ids, rows: Iterable[Mapping[str, Any]], file: ParquetFile
) -> SnapshotManifest:
    """The manifest of the other rows. `rows`: of each, `source` and, of a pair, `rater`."""
    kept = [*rows]
    raters = Counter(row["rater"] for row in kept if row.get("rater"))
    return replace(
        manifest,
        trajectories=[
            trajectory_id for trajectory_id in manifest.trajectories if (manifest.role, trajectory_id) not in ids
        ],
        preferences=[
            preference_id for preference_id in manifest.preferences or () if (manifest.role, preference_id) not in ids
        ]
        or None,
        rows=len(kept),
        parquet=file,
        raters=raters or None,
        sources=Counter(row["source"] for row in kept),
        reward_groups=None,
    )


def tainted(
    manifests: Mapping[str, PolicyManifest],
    made_from: Mapping[str, AbstractSet[str]],
    snapshots: Iterable[RewrittenSnapshot],
    names: Mapping[str, str],
) -> list[TaintedPolicy]:
    """The policies, bundles and reward models that learned from erased data, themselves or by what they continue.

    By digest: `manifests`, `made_from`, those of policies that it continues, and `names` of those that are registered.
    """
    shares = {snapshot.before: snapshot.erased / snapshot.trajectories for snapshot in snapshots}
    marked: dict[str, float] = {
        digest: shares[manifest.dataset_digest]
        for digest, manifest in manifests.items()
        if manifest.dataset_digest in shares
    }
    size = -1
    while size != len(marked):
        size = len(marked)
        for digest, before in made_from.items():
            if digest not in marked and not before.isdisjoint(marked):
                marked[digest] = 0.0
    return [
        TaintedPolicy(
            digest=digest,
            role=manifests[digest].role,
            kind=manifests[digest].kind,
            share=share,
            name=names.get(digest),
        )
        for digest, share in sorted(marked.items())
    ]
