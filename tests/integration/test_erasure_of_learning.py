"""An erasure goes on to what learns: rows of snapshots, jobs that run, policies that were trained on them."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nacl.signing import VerifyKey

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import named_id
from ratchet.core.contract.erasure import ASKED, DONE, ERASURES, REMOVED, TRAJECTORY, USER, Erasure
from ratchet.core.contract.policy_manifest import ArtifactFile, PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import NotFound
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.erased import Erased
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy, publish_policy
from ratchet.core.stores.warehouse import Warehouse
from ratchet.rl_coordinator.erasures import FOLDER, Receipts
from ratchet.rl_coordinator.settings import Timing
from tests.support.coordinator import ROLE, Workshop, coordinating, played, stored, tid
from tests.support.running import connected, prepared_objects, prepared_warehouse
from tests.support.training import promote, registered

QUICK = Timing(tick_s=0.05, trigger_tick_s=0.05, erasure_tick_s=0.1)


def trained(objects: Objects, **changes: Any) -> Policy:
    values: dict[str, Any] = {
        "kind": "adapter",
        "base_model": "org/model",
        "files": [],
        "role": ROLE,
        "created_at": datetime.now(UTC),
    }
    return publish_policy(objects, PolicyManifest(**{**values, **changes}))


async def removed(bus: Bus, warehouse: Warehouse, trajectory_id: str, **changes: Any) -> Erasure:
    """An erasure of a trajectory as the collector leaves it."""
    erasure = Erasure(
        erasure_id=named_id("erasure", trajectory_id),
        kind=TRAJECTORY,
        ref=trajectory_id,
        asked_by="test",
        asked_at=datetime.now(UTC),
        phase=REMOVED,
        **changes,
    )
    erased = Erased(warehouse)
    await erased.list_ids(erasure)
    await erased.remove_rows([erasure.erasure_id])
    await Bucket(bus, ERASURES, Erasure).create(erasure.erasure_id, erasure)
    return erasure


async def done(shop: Workshop, erasure: Erasure) -> dict[str, Any]:
    async def over() -> dict[str, Any] | None:
        answer = (await shop.api.get(f"/v1/erasures/{erasure.erasure_id}")).json()
        return answer if answer["phase"] == DONE else None

    return await eventually(over)


async def test_job_that_runs_begins_anew_without_what_was_erased(shared_settings: SharedSettings) -> None:
    objects = prepared_objects(shared_settings)
    facts = [*played("a", 1.0), *played("b", 0.0), *played("c", 0.5)]
    async with (
        connected(shared_settings) as bus,
        prepared_warehouse(shared_settings) as warehouse,
        stored(shared_settings, bus, facts),
        coordinating(shared_settings, bus, QUICK) as shop,
    ):
        job = await shop.ask()
        first = (await shop.dispatched(job["training_job_id"])).request.training_config.dataset.snapshot
        assert first is not None
        manifest, rows = shop.rows(first.uri, first.digest)
        assert {row["trajectory_id"] for row in rows} == {tid("a"), tid("b"), tid("c")}
        direct = trained(objects, dataset_digest=first.digest)
        child = trained(objects, parent=direct.uri)
        other = trained(objects, dataset_digest="0" * 64)

        erasure = await removed(bus, warehouse, tid("a"))
        again = (await shop.dispatched(job["training_job_id"], 2)).request.training_config.dataset.snapshot
        assert again is not None
        assert {row["trajectory_id"] for row in shop.rows(again.uri, again.digest)[1]} == {tid("b"), tid("c")}
        with pytest.raises(NotFound):
            objects.get(manifest["parquet"]["uri"])
        shown = await done(shop, erasure)
        (rewritten,) = shown["snapshots"]
        assert (rewritten["before"], rewritten["trajectories"], rewritten["erased"]) == (first.digest, 3, 1)
        others = shop.rows(f"s3://{shared_settings.s3_bucket}/snapshots/{rewritten['after']}.json", rewritten["after"])
        assert {row["trajectory_id"] for row in others[1]} == {tid("b"), tid("c")}
        shares = {one["digest"]: one["share"] for one in shown["tainted"]}
        assert shares == {direct.digest: pytest.approx(1 / 3), child.digest: 0}
        assert other.digest not in shares

        receipt = (await shop.api.get(f"/v1/erasures/{erasure.erasure_id}/receipt")).json()
        key = VerifyKey(base64.b64decode(receipt["public_key"]))
        key.verify(receipt["receipt"].encode(), base64.b64decode(receipt["signature"]))
        assert direct.digest in receipt["receipt"]


def version_of(policy: Policy, version: int, **changes: Any) -> PolicyVersion:
    name = f"{ROLE}@{version}-{policy.digest[:8]}"
    return registered(version, name=name, digest=policy.digest, uri=policy.uri, **changes)


async def test_stable_policy_is_trained_anew_and_its_files_go(shared_settings: SharedSettings) -> None:
    objects = prepared_objects(shared_settings)
    facts = [*played("a", 1.0), *played("b", 0.0), *played("c", 0.5)]
    weights, shared = objects.put(b"weights", "blobs"), objects.put(b"tokenizer", "blobs")
    files = [ArtifactFile(name=ref.sha256, uri=ref.uri, sha256=ref.sha256, size=ref.size) for ref in (weights, shared)]
    async with (
        connected(shared_settings) as bus,
        prepared_warehouse(shared_settings) as warehouse,
        stored(shared_settings, bus, facts),
        coordinating(shared_settings, bus, QUICK) as shop,
    ):
        job = await shop.ask()
        dispatch = await shop.dispatched(job["training_job_id"])
        first = dispatch.request.training_config.dataset.snapshot
        assert first is not None
        await shop.api.post(f"/v1/jobs/{job['training_job_id']}/cancel", params={"now": True})
        await shop.report(dispatch, "cancelled")  # it holds no slot any more
        old = trained(objects, dataset_digest=first.digest, files=files)
        await promote(bus, version_of(old, 1, training_job_id=job["training_job_id"]))

        erasure = await removed(bus, warehouse, tid("a"), retrain=True)

        async def shown(**members: Any) -> dict[str, Any] | None:
            answer = (await shop.api.get(f"/v1/erasures/{erasure.erasure_id}")).json()
            return answer if all(answer[name] for name in members) else None

        asked = await eventually(lambda: shown(trainings=True))
        anew = await shop.dispatched(asked["trainings"][ROLE])
        config = anew.request.training_config
        assert config.base_model == "org/model"
        assert config.dataset.snapshot is not None
        rows = shop.rows(config.dataset.snapshot.uri, config.dataset.snapshot.digest)[1]
        assert {row["trajectory_id"] for row in rows} == {tid("b"), tid("c")}
        assert objects.exists(weights.uri)

        await promote(bus, version_of(trained(objects, dataset_digest="0" * 64, files=files[1:]), 2))

        async def gone() -> bool:
            return not objects.exists(weights.uri)

        await eventually(gone)
        assert objects.exists(shared.uri)
        assert objects.exists(old.uri), "the manifest stays, for lineage"


async def test_erasure_that_a_restore_has_forgotten_is_asked_for_again(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    shared = shared_settings.model_copy(update={"data_dir": tmp_path})
    prepared_objects(shared)
    at = datetime.now(UTC)
    forgotten = Erasure(
        erasure_id=named_id("erasure", "forgotten"),
        kind=USER,
        ref="mia",
        asked_by="test",
        asked_at=at,
        phase=DONE,
        ids=3,
    )
    await asyncio.to_thread(Receipts(tmp_path / FOLDER).keep, forgotten)
    async with connected(shared) as bus, prepared_warehouse(shared), coordinating(shared, bus, QUICK):

        async def known() -> Erasure | None:
            entry = await Bucket(bus, ERASURES, Erasure).get(forgotten.erasure_id)
            return entry.value if entry else None

        again = await eventually(known)
    assert (again.phase, again.ref, again.asked_at, again.ids) == (ASKED, "mia", at, 0)
