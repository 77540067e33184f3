"""`ratchet policies export` on a real object store: the files and the manifest, byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import msgspec
import pytest

from ratchet.bus.message import Cause
from ratchet.canary_deployer.domain.registry import deployable, fenced, new_version
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.policies import announce, export_files, export_target, require_exportable
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy, publish_policy, upload_files
from ratchet.core.stores.policy_files import MANIFEST
from tests.support.messages import AT
from tests.support.running import connected
from tests.support.servers import variables


def endpoints(shared: SharedSettings, tmp_path: Path) -> Endpoints:
    return Endpoints(tmp_path, None, variables(shared))


def a_policy(shared: SharedSettings, tmp_path: Path) -> Policy:
    objects, files = Objects(shared), tmp_path / "files"
    objects.ensure_bucket()
    files.mkdir()
    (files / "adapter.bin").write_bytes(b"weights")
    (files / "adapter_config.json").write_text("{}")
    manifest = PolicyManifest(
        kind=ADAPTER, base_model="base", files=upload_files(objects, files), role="support", created_at=AT
    )
    return publish_policy(objects, manifest)


def described(policy: Policy) -> PolicyVersion:
    return PolicyVersion(
        role="support",
        version=1,
        name="support@1",
        digest=policy.digest,
        uri=policy.uri,
        kind=ADAPTER,
        base_model="tiny",
        created_at=AT,
        stage="registered",
    )


def quiet(done: float, total: float | None = None, note: str = "") -> None:
    """A progress bar that shows nothing."""


def test_an_export_is_the_policy_byte_for_byte(shared_settings: SharedSettings, tmp_path: Path) -> None:
    policy, target = a_policy(shared_settings, tmp_path), tmp_path / "out" / "support"
    names = export_files(endpoints(shared_settings, tmp_path), described(policy), target, quiet)
    files = (path for path in target.rglob("*") if path.is_file())
    assert sorted(names) == sorted(str(path.relative_to(target)) for path in files) != []
    assert (target / "model" / "adapter.bin").read_bytes() == b"weights"
    assert hashlib.sha256((target / MANIFEST).read_bytes()).hexdigest() == policy.digest


async def test_an_import_is_offered_to_the_deployer_as_a_completed_training_once(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    policy = await asyncio.to_thread(a_policy, shared_settings, tmp_path)
    async with connected(shared_settings) as bus:
        for _ in range(2):  # the same adapter again is the same event
            await announce(endpoints(shared_settings, tmp_path), policy)
        stream = bus.nc.jetstream()
        assert (await stream.stream_info("RL_TRAINING")).state.messages == 1
        message = await stream.get_last_msg("RL_TRAINING", TrainingStatus.TOPIC)
    status = msgspec.json.decode(message.data or b"", type=TrainingStatus)
    assert deployable(status)
    assert not fenced(status, None)
    cause = Cause(event_id=status.event_id, correlation_id=status.event_id)
    version = new_version(status, None, policy.manifest, 4, AT, cause)
    assert (version.name, version.uri, version.algorithm) == (f"support@4-{policy.digest[:8]}", policy.uri, None)


def test_an_export_goes_where_policies_of_its_kind_go(shared_settings: SharedSettings, tmp_path: Path) -> None:
    policy = described(a_policy(shared_settings, tmp_path))
    assert export_target(endpoints(shared_settings, tmp_path), policy) == Path("artifacts/imported/support@1")


def test_an_export_never_writes_over_anything(shared_settings: SharedSettings, tmp_path: Path) -> None:
    policy, target = a_policy(shared_settings, tmp_path), tmp_path / "out"
    target.mkdir()
    (target / "mine").touch()
    with pytest.raises(Rejected, match="not an empty directory"):
        export_files(endpoints(shared_settings, tmp_path), described(policy), target, quiet)
    with pytest.raises(Rejected, match="not an empty directory"):
        require_exportable(endpoints(shared_settings, tmp_path), described(policy), target)
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_an_export_that_would_work_passes_its_check(shared_settings: SharedSettings, tmp_path: Path) -> None:
    policy, target = a_policy(shared_settings, tmp_path), tmp_path / "out"
    require_exportable(endpoints(shared_settings, tmp_path), described(policy), target)
    assert not target.exists()
    gone = msgspec.structs.replace(described(policy), uri=policy.uri.replace(policy.digest, "0" * 64))
    with pytest.raises(NotFound):
        require_exportable(endpoints(shared_settings, tmp_path), gone, target)
