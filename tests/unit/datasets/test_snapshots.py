"""What a lineage has learned from is remembered within bounds, and asked for again where it was forgotten."""

from __future__ import annotations

from ratchet.bus.message import encode
from ratchet.datasets.s3_snapshots import Snapshots
from tests.support.blobs import MemoryBlobs
from tests.support.snapshot_rows import snapshot_manifest


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
