"""Patterns that exist, in newer windows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from scipy.sparse import csc_array

from ratchet.analyst.mining.again import measure_again
from ratchet.analyst.mining.base import Column, Episodes, Members
from ratchet.core.contract.learning import Effect, Pattern, Trigger
from tools.analyst.worlds import planted, world

AT = datetime(2026, 1, 1, tzinfo=UTC)
TRUTH = world(3000, planted(0.3, 0.8)[1:2], seed=1)


def pattern(finding: str, measure: str, *triggers: Trigger, kind: str = "association") -> Pattern:
    return Pattern(
        pattern_id="0" * 32,
        role="default",
        kind=kind,
        finding=finding,
        statement="x",
        focus_area="performance",
        triggers=triggers,
        effect=Effect(measure=measure, value=0.3, low=0.2, high=0.4),
        share=0.1,
        count=300,
        confidence=1.0,
        p_value=0.0,
        advice="x",
        opened_at=AT,
        seen_at=AT,
    )


def test_a_pattern_is_measured_among_its_trajectories() -> None:
    late = pattern("term", "failure", Trigger(attribute="term", value="late"))
    again = measure_again(late, TRUTH.before, TRUTH.now)
    assert again.count == np.count_nonzero(TRUTH.now.matching(late.triggers))
    assert again.effect is not None
    matching = TRUTH.now.matching(late.triggers)
    truth = TRUTH.risk[matching].mean() - TRUTH.risk[~matching].mean()
    assert again.effect.low < truth < again.effect.high


def test_a_drift_is_measured_against_the_window_before() -> None:
    fell = pattern("reward_fell", "reward", kind="drift")
    lower = replace(TRUTH.now, measures={**TRUTH.now.measures, "reward": TRUTH.now.measures["reward"] - 0.5})
    again = measure_again(fell, TRUTH.before, lower)
    assert again.effect is not None
    assert again.effect.value == pytest.approx(-0.5, abs=0.08)
    assert again.share == 1.0


def test_a_change_of_behavior_is_measured_against_the_window_before() -> None:
    longer = pattern("longer_answers", "answer_chars", kind="behavior")
    grown = replace(TRUTH.now, measures={**TRUTH.now.measures, "answer_chars": TRUTH.now.measures["answer_chars"] * 2})
    again = measure_again(longer, TRUTH.before, grown)
    assert again.effect is not None
    assert again.effect.low > 0


def test_policies_are_measured_within_their_cluster() -> None:
    """Both versions fail alike within the cluster, and the cluster fails more than the rest."""
    late = Trigger(attribute="term", value="late")
    own = Trigger(attribute="version", value="2")
    version = Column((np.arange(len(TRUTH.now)) % 2).astype(np.int32), ("1", "2"))
    now = replace(TRUTH.now, columns={**TRUTH.now.columns, "version": version})
    again = measure_again(pattern("policies_differ", "failure", late, own, kind="behavior"), TRUTH.before, now)
    assert again.effect is not None
    assert again.effect.low < 0 < again.effect.high


def test_an_unused_tool_is_measured_by_its_share_of_calls() -> None:
    unused = pattern("tool_never_used", "share", Trigger(attribute="offered", value="tool 9"), kind="behavior")
    offered = replace(TRUTH.now, members={**TRUTH.now.members, "offered": TRUTH.now.members["tool"]})
    again = measure_again(unused, TRUTH.before, offered)
    assert again.effect is not None
    assert again.effect.value == 1.0


def test_a_pattern_without_trajectories_has_no_effect() -> None:
    gone = pattern("term", "failure", Trigger(attribute="term", value="never seen"))
    again = measure_again(gone, TRUTH.before, TRUTH.now)
    assert (again.count, again.share, again.effect) == (0, 0.0, None)


def test_a_window_without_trajectories_has_no_effect() -> None:
    nothing = Episodes((), np.zeros(0, dtype=np.uint64), np.zeros(0), {}, {}, {})
    assert measure_again(pattern("reward_fell", "reward", kind="drift"), nothing, nothing).effect is None


def scored(window: Episodes, score: float) -> Episodes:
    """Its trajectories, whose reward has the component `a` with that score, and `b`."""
    count = len(window)
    members = {**window.members, "component": Members(csc_array(np.ones((count, 1), dtype=np.bool_)), ("a",))}
    return replace(window, members=members, components={"a": np.full(count, score), "b": np.full(count, 0.5)})


@pytest.mark.parametrize("finding", ["component_diverged", "component_fell"])
def test_a_component_is_measured_again_against_the_others(finding: str) -> None:
    about = pattern(finding, "reward", Trigger(attribute="component", value="a"), kind="behavior")
    again = measure_again(about, scored(TRUTH.before, 0.8), scored(TRUTH.now, 0.5))
    assert again.effect is not None
    assert again.effect.value == pytest.approx(-0.3)
