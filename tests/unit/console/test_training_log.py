"""The log of a job: what its training process printed, read beside the policy that the job made."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.bus.kv import Entry
from ratchet.console.training import TEXT, Training
from ratchet.core.contract.policy_manifest import ArtifactFile, PolicyManifest
from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import Artifacts
from ratchet.core.errors import NotFound
from ratchet.core.rules.access import ALL_ROLES, RoleSet
from ratchet.core.stores.policies import encode_manifest
from tests.support.blobs import MemoryBlobs
from tests.support.messages import AT
from tests.support.training import request

JOB = "0190a"
UNUSED: Any = None


def training(log: bytes | None, *, made: bool = True) -> Training:
    """Of one job, which made a reward model with this log beside it."""
    blobs: Any = MemoryBlobs()
    documents: list[ArtifactFile] = []
    if log is not None:
        ref = blobs.put(log, "blobs")
        documents.append(ArtifactFile(name="training.log", uri=ref.uri, sha256=ref.sha256, size=ref.size))
    manifest = PolicyManifest(
        kind="reward_model", base_model="m", files=[], role="support", documents=documents, created_at=AT
    )
    policy = blobs.put(encode_manifest(manifest), "policies", ".json")
    job = Job(
        training_job_id=JOB,
        role="support",
        algorithm="reward_model",
        state=JobState.COMPLETED,
        priority="normal",
        created_at=AT,
        updated_at=AT,
        request=request(),
        artifacts=Artifacts(final_checkpoint=policy.uri, digest=policy.sha256) if made else None,
    )

    async def find(job_id: str) -> Entry[Job] | None:
        return Entry(job, 1) if job_id == JOB else None

    return Training(UNUSED, blobs, find)


@pytest.mark.parametrize("size", [0, 100, TEXT])
async def test_a_short_log_is_shown_whole(size: int) -> None:
    log = await training(b"x" * size).log(JOB, ALL_ROLES)
    assert (log.text, log.is_whole) == ("x" * size, True)


async def test_of_a_long_log_the_end_is_shown() -> None:
    log = await training(b"x" * TEXT + b"the end").log(JOB, ALL_ROLES)
    assert (len(log.text), log.text[-7:], log.is_whole) == (TEXT, "the end", False)


async def test_a_log_reaches_no_terminal_with_its_control_characters() -> None:
    log = await training(b"\x1b[31mloss\x1b[0m\t0.5\r\n").log(JOB, ALL_ROLES)
    assert log.text == "\\x1b[31mloss\\x1b[0m\t0.5\\x0d\n"


@pytest.mark.parametrize(("log", "made"), [(None, True), (b"x", False)])
async def test_a_job_without_a_log_is_refused_with_the_reason(log: bytes | None, made: bool) -> None:
    with pytest.raises(NotFound, match="no log"):
        await training(log, made=made).log(JOB, ALL_ROLES)


async def test_a_log_is_for_who_may_see_its_role() -> None:
    with pytest.raises(NotFound, match="there is no job"):
        await training(b"x").log(JOB, RoleSet(frozenset({"sales"})))
