"""Bundles that a gateway has read once, with and without a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ratchet.bus.kv import Bucket, Entry
from ratchet.core.contract.bundle import Bundle, Instructions
from ratchet.core.contract.state import BUNDLES, ServedPolicy
from ratchet.gateway.kv_bundles import ASK_AGAIN_S, Bundles
from tests.support.fake_bus import fake_bus
from tests.support.gateway_scene import version

BUNDLE = Bundle(instructions=Instructions(text="You are ours."))
POLICY = ServedPolicy(version=2, name=version(2).name, digest=version(2).digest, bundle=True)


async def test_a_bundle_is_known_after_a_restart_without_a_broker(tmp_path: Path) -> None:
    bucket = Bucket(fake_bus(), BUNDLES, Bundle)
    await bucket.put(POLICY.digest, BUNDLE)
    await Bundles(lambda: bucket, tmp_path).prepare([POLICY])
    known = Bundles(lambda: None, tmp_path).find(POLICY.digest)
    assert known is not None
    assert known.bundle == BUNDLE


@pytest.mark.parametrize("stored", [b"no json", b'{"instructions": 1}', b'{"instructions": {"text": "{{secret}}"}}'])
async def test_a_damaged_file_is_read_from_the_bucket_again(tmp_path: Path, stored: bytes) -> None:
    (tmp_path / f"{POLICY.digest}.json").write_bytes(stored)
    bucket = Bucket(fake_bus(), BUNDLES, Bundle)
    await bucket.put(POLICY.digest, BUNDLE)
    bundles = Bundles(lambda: bucket, tmp_path)
    assert bundles.find(POLICY.digest) is None
    await bundles.prepare([POLICY])
    assert bundles.find(POLICY.digest) is not None


async def test_a_lost_bundle_is_asked_for_again_after_a_pause(tmp_path: Path) -> None:
    now, bucket = [0.0], Bucket(fake_bus(), BUNDLES, Bundle)
    bundles = Bundles(lambda: bucket, tmp_path, lambda: now[0])
    await bundles.prepare([POLICY])
    await bucket.put(POLICY.digest, BUNDLE)
    now[0] = ASK_AGAIN_S - 0.1
    await bundles.prepare([POLICY])
    assert bundles.find(POLICY.digest) is None
    now[0] = ASK_AGAIN_S
    await bundles.prepare([POLICY])
    assert bundles.find(POLICY.digest) is not None


class CountedBucket(Bucket[Bundle]):
    """Counts its reads."""

    reads = 0

    async def get(self, key: str) -> Entry[Bundle] | None:
        self.reads += 1
        return await super().get(key)


async def test_calls_at_once_read_a_bundle_once(tmp_path: Path) -> None:
    bucket = CountedBucket(fake_bus(), BUNDLES, Bundle)
    await bucket.put(POLICY.digest, BUNDLE)
    bundles = Bundles(lambda: bucket, tmp_path)
    await asyncio.gather(*(bundles.prepare([POLICY]) for _ in range(5)))
    assert (bundles.find(POLICY.digest) is None, bucket.reads) == (False, 1)


def test_bundles_that_no_policy_names_leave_the_disk(tmp_path: Path) -> None:
    kept, gone, other = (tmp_path / name for name in (f"{'a' * 64}.json", f"{'b' * 64}.json", "routes.json"))
    for file in (kept, gone, other):
        file.write_bytes(b"{}")
    bundles = Bundles(lambda: None, tmp_path)
    bundles.prune(set())
    assert gone.exists()
    bundles.prune({"a" * 64})
    assert [kept.exists(), gone.exists(), other.exists()] == [True, False, True]
