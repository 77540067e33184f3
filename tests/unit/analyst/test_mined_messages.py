"""Failures planted in trajectories, through features, detectors and tests."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import numpy as np

from ratchet.analyst.mining.base import Episodes
from ratchet.analyst.mining.features import EpisodeBuilder
from ratchet.analyst.mining.mine import mine
from ratchet.core.contract.trajectory import Outcome
from tests.support.messages import AT, trajectory

QUESTIONS = ("where is my parcel?", "how do I change my address?", "my refund is late", "which colours are there?")
REFUND = 2


def window(name: str, count: int, harm: float) -> Episodes:
    """Of four questions a tenth fails; of those for a refund `harm` more."""
    random, builder = np.random.default_rng([count, *name.encode()]), EpisodeBuilder()
    for index in range(count):
        topic = int(random.integers(len(QUESTIONS)))
        fails = random.random() < 0.1 + harm * (topic == REFUND)
        plain = trajectory(f"{name}-{index}")
        asked = msgspec.structs.replace(plain.turns[0].observation, content=QUESTIONS[topic])
        builder.add(
            msgspec.structs.replace(
                plain,
                end_timestamp=AT + timedelta(seconds=3 + index),
                turns=[msgspec.structs.replace(plain.turns[0], observation=asked)],
                outcome=Outcome(status="failure" if fails else "success", verified_by="environment"),
            ),
            reward=1.0 - fails,
            components={},
            feedback=False,
        )
    return builder.build()


def test_late_refunds_are_reported_from_trajectories() -> None:
    mined = mine(window("before", 800, 0.6), window("now", 800, 0.6), alpha=2.2e-5, seed=1)
    named = {trigger.value for finding in mined.findings for trigger in finding.hypothesis.triggers}
    assert named & {"refund", "late"}
    assert all(0.3 < finding.effect < 0.9 for finding in mined.findings if finding.hypothesis.measure == "failure")


def test_trajectories_without_a_pattern_report_none() -> None:
    assert mine(window("before", 800, 0.0), window("now", 800, 0.0), alpha=2.2e-5, seed=1).findings == ()
