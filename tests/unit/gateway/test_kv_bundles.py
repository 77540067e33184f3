"""Bundles that a gateway has read once, with and without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.bus.kv import Bucket
from ratchet.core.contract.bundle import Bundle, Instructions
from ratchet.core.contract.state import BUNDLES, ServedPolicy
from ratchet.gateway.kv_bundles import Bundles
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


async def test_what_is_not_stored_is_not_known(tmp_path: Path) -> None:
    bundles = Bundles(lambda: Bucket(fake_bus(), BUNDLES, Bundle), tmp_path)
    await bundles.prepare([POLICY])
    assert bundles.find(POLICY.digest) is None
