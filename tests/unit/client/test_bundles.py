"""What a fetched bundle gives an agent beside its texts."""

from __future__ import annotations

import pytest

from ratchet.client.bundles import TrajectoryBundle
from ratchet.core.contract.bundle import NO_BUNDLE


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ("support@2-1a2b3c4d", {"gen_ai.prompt.name": "support", "gen_ai.prompt.version": "2"}),
        ("provider:large", {}),
    ],
)
def test_a_span_names_the_bundle_by_the_conventions(policy: str, named: dict[str, str]) -> None:
    fetched = TrajectoryBundle(trajectory_id="t", policy=policy, digest="", arm="stable", bundle=NO_BUNDLE)
    assert fetched.span_attributes == named
