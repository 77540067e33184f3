"""Manifests: what they count, and that ids which a lineage learned from are remembered within bounds."""

from __future__ import annotations

import msgspec

from ratchet.bus.message import encode
from ratchet.core.contract.snapshot import PAIRS, TRAJECTORIES, RewardGroups, SnapshotHeader, TrajectoryRow
from ratchet.core.datasets.domain.rows import RowOrigin, SnapshotRow
from ratchet.core.datasets.s3_snapshots import Snapshots
from tests.support.blobs import MemoryBlobs
from tests.support.snapshot_rows import snapshot_manifest, trajectory_row


class CountingBlobs(MemoryBlobs):
    """Counts how often something was read."""

    reads = 0

    def get(self, uri: str, sha256: str | None = None) -> bytes:
        self.reads += 1
        return super().get(uri, sha256)

    def snapshot(self, *trajectories: str) -> str:
        """The digest of a new snapshot."""
        manifest = snapshot_manifest(trajectories=list(trajectories), preferences=["p"])
        return self.put(encode(manifest), "snapshots", ".json").sha256


def test_a_long_lineage_does_not_stay_in_memory() -> None:
    blobs = CountingBlobs()
    digests = [blobs.snapshot(*(f"{number}-{n}" for n in range(10))) for number in range(6)]
    snapshots = Snapshots(blobs, "test", remembered=25)
    everything = {f"{number}-{n}" for number in range(6) for n in range(10)}
    assert snapshots.consumed(digests).trajectories == everything
    assert blobs.reads == 6
    assert snapshots.consumed(digests[-2:]).trajectories == {name for name in everything if name[0] in "45"}
    assert blobs.reads == 6
    assert snapshots.consumed(digests).trajectories == everything
    assert blobs.reads > 6


def test_one_snapshot_is_remembered_however_large_it_is() -> None:
    blobs = CountingBlobs()
    digest = blobs.snapshot("a", "b")
    snapshots = Snapshots(blobs, "test", remembered=1)
    assert [snapshots.consumed([digest]).preferences for _ in range(3)] == [{"p"}] * 3
    assert blobs.reads == 1


def test_a_manifest_has_how_many_groups_of_tries_differ_in_reward() -> None:
    tries = [("flight", 0.0), ("flight", 1.0), ("hotel", 1.0), ("hotel", 1.0), ("train", 0.0)]
    rows = [trajectory_row(number, task_key=task, reward=reward) for number, (task, reward) in enumerate(tries)]
    counted = {TRAJECTORIES: RewardGroups(groups=2, mixed_groups=1, singletons=1), PAIRS: None}
    assert {form: published_groups(form, rows) for form in counted} == counted


def published_groups(form: str, rows: list[TrajectoryRow]) -> RewardGroups | None:
    """What the manifest of a snapshot with these rows has, where they are of its form."""
    snapshots = Snapshots(MemoryBlobs(), "test")
    header = msgspec.convert(snapshot_manifest(), SnapshotHeader, from_attributes=True)
    with snapshots.writer(form) as writer:
        for row in rows if form == TRAJECTORIES else ():
            writer.add([SnapshotRow(row, RowOrigin((row.trajectory_id,), row.source))])
        return snapshots.manifest(writer.publish(header, {})).reward_groups
