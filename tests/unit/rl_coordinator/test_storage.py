"""A sweep removes what nothing needs, and never what a job, a policy, a route or a lineage refers to."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route, ServedPolicy
from ratchet.core.contract.training import Artifacts, SnapshotRef
from ratchet.core.errors import ObjectsUnavailable, Rejected
from ratchet.rl_coordinator.storage.collector import Collector
from ratchet.rl_coordinator.storage.domain import Retention, digest_of
from tests.support.fake_bus import fake_bus
from tests.support.object_store import MemoryStore
from tests.support.training import after, job, registered

RETENTION = Retention(
    grace=timedelta(hours=48), retention=timedelta(days=90), trash=timedelta(days=7), bodies=timedelta(days=32)
)
OLD = {"days": 100.0}


class Bench:
    """A store, the buckets, and a collector of each coordinator."""

    def __init__(self) -> None:
        self.store, self.bus = MemoryStore(), fake_bus()

    def collector(self, bus: FakeBus | None = None, *, dry_run: bool = False) -> Collector:
        return Collector(bus or self.bus, self.store, RETENTION, every_s=86_400, dry_run=dry_run)

    async def sweep(self, *, dry_run: bool = False) -> dict[str, int]:
        """Objects that were set aside, by reason."""
        report = await self.collector().sweep(dry_run=dry_run)
        return {reason: swept.objects for reason, swept in report.set_aside.items()}

    def file(self, text: str) -> dict[str, Any]:
        """A stored blob as a manifest names it."""
        uri = self.store.add("blobs", text.encode(), "")
        return {"name": text, "uri": uri, "sha256": digest_of(uri), "size": len(text)}

    def checkpoint(self, of: Job, text: str) -> str:
        files = [self.file(text), self.file("shared")]
        return self.store.add("checkpoints", {"training_job_id": of.training_job_id, "step": text, "files": files})

    def policy(self, text: str, made_by: str | None = "unknown", **members: Any) -> str:
        made = {"training_job_id": made_by} if made_by else {}
        return self.store.add("policies", {"kind": "adapter", "files": [self.file(text)], **made, **members})

    def snapshot(self, text: str, made_by: str = "unknown") -> str:
        parquet = self.store.add("snapshots", text.encode(), ".parquet")
        named = {"parquet": {"uri": parquet, "sha256": digest_of(parquet)}, "training_job_id": made_by}
        return self.store.add("snapshots", {"kind": "snapshot", **named})

    async def keep_job(self, one: Job) -> None:
        await Bucket(self.bus, JOBS, Job).put(one.training_job_id, one)

    async def register(self, version: int, uri: str, **changes: Any) -> None:
        policy = registered(version, uri=uri, digest=digest_of(uri), **changes)
        await Bucket(self.bus, POLICIES, PolicyVersion).put(f"{policy.role}.{version}", policy)


@pytest.fixture
async def bench() -> Bench:
    made = Bench()
    await made.keep_job(job("somebody's"))
    return made


async def test_last_checkpoint_of_an_ended_job_stays_with_shared_files(bench: Bench) -> None:
    ended = job("ended", state="completed")
    first, last = bench.checkpoint(ended, "one"), bench.checkpoint(ended, "two")
    await bench.keep_job(msgspec.structs.replace(ended, artifacts=Artifacts(checkpoint=last)))
    bench.store.later(**OLD)
    assert await bench.sweep() == {"superseded_checkpoint": 1, "orphan": 1}
    assert last in bench.store.blobs
    assert {*bench.store.trash} == {first, bench.file("one")["uri"]}
    assert bench.store.trash.keys() & {bench.file("shared")["uri"], bench.file("two")["uri"]} == set()


async def test_the_body_of_a_message_goes_by_its_age_alone() -> None:
    bench = Bench()  # of an installation that has never trained
    body = bench.store.add("bodies/support", b"a body", "")
    bench.store.later(days=20)
    again = bench.store.add("bodies/billing", b"a body", "")
    bench.store.later(days=13)
    assert await bench.sweep() == {"expired": 1}
    assert (*bench.store.blobs,) == (again,)
    assert bench.store.get(body) == b"a body"  # a late reader takes it back


async def test_of_a_running_job_every_checkpoint_stays(bench: Bench) -> None:
    running = job("running", state="running")
    bench.checkpoint(running, "one")
    bench.checkpoint(running, "two")
    await bench.keep_job(running)
    bench.store.later(days=1000)
    assert await bench.sweep() == {}


async def test_a_snapshot_that_was_built_without_a_job_stays_for_the_retention(bench: Bench) -> None:
    bench.snapshot("rows", made_by="")
    bench.store.later(days=89)
    assert await bench.sweep() == {}
    bench.store.later(days=2)
    assert await bench.sweep() == {"expired": 1, "orphan": 1}


async def test_checkpoint_of_job_that_is_not_known_any_more_stays_for_retention(bench: Bench) -> None:
    bench.checkpoint(job("pruned"), "one")
    bench.store.later(days=89)
    assert await bench.sweep() == {}
    bench.store.later(days=2)
    assert await bench.sweep() == {"expired": 1, "orphan": 2}


async def test_what_a_policy_its_lineage_and_its_data_need_stays_for_ever(bench: Bench) -> None:
    base = bench.policy("base", made_by=None)
    data = bench.snapshot("rows")
    parent = bench.policy("parent", base_model=base)
    child = bench.policy("child", base_model=base, parent=parent, dataset_digest=digest_of(data))
    await bench.register(2, child)
    bench.store.later(days=4000)
    assert await bench.sweep() == {}


async def test_what_only_a_route_or_a_job_names_stays(bench: Bench) -> None:
    served, started, chosen = bench.policy("served"), bench.policy("started from"), bench.snapshot("chosen")
    route = Route(role="sales", stable=ServedPolicy(version=1, name="sales@1", digest=digest_of(served) or ""))
    await Bucket(bench.bus, POLICIES, Route).put("sales", route)
    ref = SnapshotRef(uri=chosen, digest=digest_of(chosen) or "")
    await bench.keep_job(job("queued", snapshot=ref, artifacts=Artifacts(final_checkpoint=started)))
    bench.store.later(days=4000)
    assert await bench.sweep() == {}


async def test_a_member_of_a_later_version_refers_to_objects_too(bench: Bench) -> None:
    named = bench.file("named by something new")["sha256"]
    future = {**msgspec.to_builtins(job("future")), "new_member": {"deep": [f"s3://test/blobs/{named}"]}}
    await Bucket(bench.bus, JOBS, msgspec.Raw).put("future", msgspec.Raw(msgspec.json.encode(future)))
    bench.store.later(**OLD)
    assert await bench.sweep() == {}


async def test_a_model_that_a_person_stored_stays_though_nothing_uses_it(bench: Bench) -> None:
    bench.policy("a base for next year", made_by=None)
    bench.store.later(days=4000)
    assert await bench.sweep() == {}


async def test_a_manifest_that_cannot_be_read_and_an_object_of_another_name_stay(bench: Bench) -> None:
    bench.store.add("policies", b"\xff not json")
    bench.store.blobs["s3://test/blobs/readme.txt"] = (b"mine", bench.store.clock)
    bench.store.blobs["s3://test/backups/" + "a" * 64] = (b"mine", bench.store.clock)
    bench.store.later(days=4000)
    assert await bench.sweep() == {}


async def test_the_result_of_the_gates_stays_and_goes_with_its_policy(bench: Bench) -> None:
    kept, unused = bench.policy("kept"), bench.policy("unused")
    await bench.register(1, kept)
    for uri in (kept, unused):
        bench.store.write(b"{}", f"validations/{digest_of(uri)}.json")
    bench.store.later(days=89)
    assert await bench.sweep() == {}
    bench.store.later(days=2)
    assert await bench.sweep() == {"expired": 1, "orphan": 2}
    assert f"s3://test/validations/{digest_of(unused)}.json" in bench.store.trash
    assert f"s3://test/validations/{digest_of(kept)}.json" in bench.store.blobs


async def test_what_is_young_stays_and_an_old_blob_that_no_manifest_names_goes(bench: Bench) -> None:
    bench.file("orphan")
    bench.store.later(hours=47)
    bench.file("young")
    assert await bench.sweep() == {}
    bench.store.later(hours=2)
    assert await bench.sweep() == {"orphan": 1}


async def test_data_of_a_failed_job_goes_after_the_retention(bench: Bench) -> None:
    bench.snapshot("nobody's")
    bench.store.later(days=89)
    assert await bench.sweep() == {}
    bench.store.later(days=2)
    assert await bench.sweep() == {"expired": 1, "orphan": 1}


async def test_a_dry_run_changes_nothing_and_counts_what_would_go(bench: Bench) -> None:
    bench.file("orphan")
    bench.store.later(**OLD)
    before = dict(bench.store.blobs)
    assert await bench.sweep(dry_run=True) == {"orphan": 1}
    assert (bench.store.blobs, bench.store.trash) == (before, {})


async def test_what_was_set_aside_is_there_for_readers_and_goes_later(bench: Bench) -> None:
    kept, lost = bench.file("read again")["uri"], bench.file("never read")["uri"]
    bench.store.later(**OLD)
    await bench.sweep()
    assert bench.store.blobs == {}
    bench.store.later(days=6)
    assert bench.store.get(kept) == b"read again"
    await bench.sweep()
    assert lost in bench.store.trash
    bench.store.later(days=1)
    await bench.sweep()
    assert (kept in bench.store.blobs, bench.store.trash) == (True, {})
    assert lost not in bench.store.blobs


async def test_what_is_set_aside_again_stays_in_the_trash_for_its_week(bench: Bench) -> None:
    """Its first copy is still in the trash when the object itself is old and unused for the second time."""
    uri = bench.file("read in between")["uri"]
    bench.store.later(**OLD)
    await bench.sweep()
    bench.store.get(uri)
    bench.store.later(days=8)
    assert await bench.sweep() == {"orphan": 1}
    assert uri not in bench.store.blobs
    bench.store.later(days=6)
    await bench.sweep()
    assert bench.store.get(uri) == b"read in between"


async def test_sweeper_with_an_older_listing_removes_no_newer_copy(bench: Bench) -> None:
    uri = bench.file("twice unused")["uri"]
    bench.store.later(**OLD)
    await bench.sweep()
    bench.store.get(uri)
    bench.store.later(days=8)
    slow = bench.store.aside()
    await bench.sweep()
    assert not bench.store.remove_aside(slow[0])
    assert bench.store.get(uri) == b"twice unused"


async def test_what_a_late_listing_lacked_comes_back_with_the_next_sweep(bench: Bench) -> None:
    policy = bench.policy("serving")
    await bench.register(1, policy)
    file = bench.file("serving")["uri"]
    bench.store.later(**OLD)
    bench.store.unlisted = {policy}
    assert await bench.sweep() == {"orphan": 1}
    assert file not in bench.store.blobs
    bench.store.unlisted = set()
    bench.store.later(days=1)
    assert (await bench.collector().sweep(dry_run=False)).taken_back == 1
    bench.store.later(days=30)
    assert await bench.sweep() == {}
    assert {policy, file} <= bench.store.blobs.keys()


async def test_a_restored_registry_gets_back_what_it_refers_to(bench: Bench) -> None:
    policy = bench.policy("registered in the backup")
    bench.store.later(**OLD)
    assert await bench.sweep() == {"expired": 1, "orphan": 1}
    await bench.register(1, policy)
    bench.store.later(days=30)
    report = await bench.collector().sweep(dry_run=False)
    assert report.taken_back == 2
    assert [policy, hashlib.sha256(b"registered in the backup").hexdigest()] == [
        uri if uri == policy else digest_of(uri) for uri in sorted(bench.store.blobs, reverse=True)
    ]


async def test_a_lost_registry_removes_nothing() -> None:
    bench = Bench()
    bench.policy("a week of work")
    bench.store.later(**OLD)
    with pytest.raises(Rejected, match="registry is missing"):
        await bench.sweep()
    assert bench.store.trash == {}


@pytest.mark.parametrize("prefix", ["policies/", "checkpoints/", "snapshots/", "blobs/"])
async def test_a_listing_that_breaks_off_removes_nothing(bench: Bench, prefix: str) -> None:
    bench.file("orphan")
    bench.store.later(**OLD)
    bench.store.failing = prefix
    with pytest.raises(ObjectsUnavailable):
        await bench.sweep()
    assert bench.store.trash == {}


async def test_a_blob_that_is_written_again_while_a_sweep_runs_stays(bench: Bench) -> None:
    uri = bench.file("written again")["uri"]
    bench.store.later(**OLD)

    def rival(moved: str) -> None:
        bench.store.touch(moved)

    bench.store.before_moving = rival
    assert await bench.sweep() == {}
    assert uri in bench.store.blobs


async def test_of_two_coordinators_whose_clocks_differ_one_sweeps_in_an_interval(bench: Bench) -> None:
    ahead = FakeBus(bench.bus.broker, now=lambda: after(30))
    behind = FakeBus(bench.bus.broker, now=lambda: after(0))
    for bus in (ahead, behind):
        await bench.collector(bus).tick()  # the first time there is only a beginning
    bench.file("orphan")
    bench.store.later(**OLD)
    later = [FakeBus(bench.bus.broker, now=lambda s=s: after(86_400 + s)) for s in (35, 5, 40)]
    swept: list[int] = []
    for bus in later:
        before = len(bench.store.trash)
        await bench.collector(bus).tick()
        swept.append(len(bench.store.trash) - before)
        bench.file("another orphan")
        bench.store.later(**OLD)
    assert swept == [1, 0, 0]


names = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6)


@settings(max_examples=25)
@given(policies=names, checkpoints=names, registered_ones=names, days=st.integers(0, 200))
async def test_whatever_is_registered_can_be_read_after_any_sweeps(
    policies: list[str], checkpoints: list[str], registered_ones: list[str], days: int
) -> None:
    bench = Bench()
    ended = job("ended", state="failed")
    await bench.keep_job(ended)
    uris = {name: bench.policy(name) for name in policies}
    for name in checkpoints:
        bench.checkpoint(ended, name)  # its files are those of the policy of that name
    for number, name in enumerate(one for one in registered_ones if one in uris):
        await bench.register(number, uris[name])
    for _ in range(3):
        bench.store.later(days=days)
        await bench.sweep()
    for name in registered_ones:
        if name in uris:
            assert bench.store.blobs[uris[name]]
            assert bench.store.blobs[f"s3://test/blobs/{hashlib.sha256(name.encode()).hexdigest()}"]


async def test_file_of_a_planner_stays_while_its_bundle_is_registered(bench: Bench) -> None:
    planner = bench.file("planner")
    bundle = {"planner": {"uri": planner["uri"], "sha256": planner["sha256"]}}
    named = bench.store.add("policies", {"kind": "bundle", "files": [], "bundle": bundle})
    await bench.register(2, named)
    bench.file("of no planner any more")
    bench.store.later(days=4000)
    assert await bench.sweep() == {"orphan": 1}
    assert bench.store.get(planner["uri"]) == b"planner"
