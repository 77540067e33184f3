"""Forming, testing and merging, on worlds whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ratchet.analyst.mining.base import FIRST, FORMING, Episodes, Finding, Hypothesis
from ratchet.analyst.mining.mine import FamilyTests, judged, mine
from ratchet.analyst.mining.testing import Pools, p_values
from ratchet.core.contract.learning import Trigger
from tools.analyst.worlds import LUCK, cause_of, is_true, planted, world

LEVEL = 2.2e-5
"""Of an hourly run."""
LATE = Trigger(attribute="term", value="late")


def test_mining_names_each_planted_cause_once() -> None:
    truth = world(6000, planted(0.3, 0.8), seed=1)
    mined = mine(truth.before, truth.now, alpha=LEVEL, seed=1)
    causes = [cause_of(finding, truth) for finding in mined.findings]
    assert sorted(str(cause) for cause in causes) == sorted(str(cause) for cause in truth.planted)
    assert all(is_true(finding, truth) for finding in mined.findings)


def test_mining_reports_nothing_where_nothing_is_planted() -> None:
    for seed in range(5):
        truth = world(1000, (), seed)
        assert not mine(truth.before, truth.now, alpha=0.05, seed=seed).findings


def test_mining_gives_the_same_findings_for_the_same_seed() -> None:
    truth = world(2000, planted(0.5, 1.0), seed=2)
    first, second = (mine(truth.before, truth.now, alpha=LEVEL, seed=7) for _ in range(2))
    assert [str(finding.hypothesis.triggers) for finding in first.findings]
    assert [(f.p_value, f.evidence, f.low) for f in first.findings] == [
        (f.p_value, f.evidence, f.low) for f in second.findings
    ]


def test_findings_state_share_cost_and_evidence_of_the_later_window() -> None:
    truth = world(6000, planted(0.3, 0.8)[1:2], seed=3)
    (finding,) = mine(truth.before, truth.now, alpha=LEVEL, seed=1).findings
    late = truth.now.matching([LATE])
    failed = {i for i, bad in zip(truth.now.ids, late & (truth.now.measures["failure"] == 1), strict=True) if bad}
    assert finding.hypothesis.triggers == (LATE,)
    assert finding.count == np.count_nonzero(late)
    assert finding.share == finding.count / len(truth.now)
    assert finding.reward_cost > 0
    assert finding.low < finding.effect < finding.high
    assert len(finding.evidence) == 20
    if finding.hypothesis.measure == "failure":
        assert set(finding.evidence) <= failed


def test_a_run_whose_level_is_spent_reports_nothing() -> None:
    truth = world(2000, planted(0.5, 1.0), seed=2)
    assert not mine(truth.before, truth.now, alpha=0.0, seed=1).findings


def test_windows_without_episodes_report_nothing() -> None:
    truth = world(200, (), seed=1)
    nothing = Episodes((), np.zeros(0, dtype=np.uint64), np.zeros(0), {}, {}, {})
    assert mine(nothing, truth.now, alpha=0.05, seed=1).findings == ()
    assert mine(nothing, nothing, alpha=0.05, seed=1).findings == ()


def test_an_incident_of_one_window_alone_is_not_borne_out() -> None:
    """The quarter that tests the quiet window differs a little: p is .01 there, and both together pass the level."""
    truth = world(4000, planted(0.3, 0.8)[1:2], seed=3)
    late = Hypothesis("association", "term", "failure", (LATE,))

    def findings(p_value: float) -> tuple[Finding, ...]:
        tested = FamilyTests(Pools.of(truth.before, truth.now), [late], np.array([p_value**2]), lambda _: 1.0)
        return judged(truth.before, truth.now, tested, alpha=0.05).findings

    assert not findings(0.01)
    assert findings(0.0009)


def test_claims_of_one_cause_count_as_one_discovery() -> None:
    """Four names of one cause would let a fifth hypothesis pass, at a level that one discovery does not have."""
    truth = world(4000, planted(0.3, 0.8)[1:2], seed=3)
    names = [Hypothesis("association", "term", m, (LATE,)) for m in ("failure", "reward")]
    other = Hypothesis("association", "language", "failure", (Trigger(attribute="language", value="language 1"),))
    p_value = np.array([1e-12, 1e-12, 8e-7])
    tested = FamilyTests(Pools.of(truth.before, truth.now), [*names, other], p_value, lambda _: 1.0)
    findings = judged(truth.before, truth.now, tested, alpha=1e-6).findings
    assert [finding.hypothesis.triggers for finding in findings] == [(LATE,)]


def test_intervals_are_adjusted_for_what_was_selected() -> None:
    truth = world(6000, planted(0.3, 0.8)[1:2], seed=3)
    pools = Pools.of(truth.before, truth.now)
    late = Hypothesis("association", "term", "failure", (LATE,))
    others = [
        Hypothesis("association", "language", "failure", (Trigger(attribute="language", value=f"language {i}"),))
        for i in range(8)
    ]
    alone, selected = (
        judged(truth.before, truth.now, FamilyTests.of(pools, family, LEVEL, 1), alpha=LEVEL).findings
        for family in ([late], [late, *others])
    )
    assert selected[0].effect == alone[0].effect
    assert selected[0].low < alone[0].low < alone[0].high < selected[0].high
    assert len(alone) == len(selected) == 1


def test_both_parts_of_a_claim_have_to_hold() -> None:
    truth = world(3000, planted(0.4, 0.8)[1:2], seed=5)
    pools = Pools.of(truth.before, truth.now)
    holds = Hypothesis("association", "term", "failure", (LATE,))
    fails = Hypothesis("association", "language", "failure", (Trigger(attribute="language", value="language 1"),))
    alone, both, one = p_values(pools, [holds, replace(holds, also=holds), replace(holds, also=fails)], 0.05, 1)
    assert alone < 1e-6
    assert both < 1e-6
    assert one > 1e-3


def test_a_change_between_windows_is_borne_out() -> None:
    truth = world(4000, (), seed=4)
    rewards = truth.now.measures["reward"]
    rewards -= 0.6
    drop = Hypothesis("drift", "reward_fell", "reward", between_windows=True)
    tests = FamilyTests.of(Pools.of(truth.before, truth.now), [drop], LEVEL, 1)
    (finding,) = judged(truth.before, truth.now, tests, alpha=LEVEL).findings
    assert finding.hypothesis.finding == "reward_fell"
    assert finding.low < -0.6 < finding.high
    assert finding.share == 1.0


def test_a_tool_without_calls_is_borne_out_as_rare() -> None:
    truth = world(4000, (), seed=5)
    unused = Hypothesis("behavior", "unused_tool", "calls", value=lambda e: np.zeros(len(e)), rare=0.03)
    tests = FamilyTests.of(Pools.of(truth.before, truth.now), [unused], LEVEL, 1)
    (finding,) = judged(truth.before, truth.now, tests, alpha=LEVEL).findings
    assert (finding.effect, finding.low) == (0.0, 0.0)
    assert 0 < finding.high < 0.03


def test_p_values_of_a_trait_and_luck_that_last_keep_their_level() -> None:
    """Each of 40 traits of subjects is tested against failures that depend on the subject's luck alone."""
    assert LUCK == 1.0
    truth = world(1500, (), seed=6)
    pools = Pools.of(truth.before, truth.now)
    values = [("language", i) for i in range(8)] + [("model", i) for i in range(4)]
    values += [("domain", i) for i in range(5)] + [("term", i) for i in range(100, 123)]
    names = {"term": "word"}
    triggers = [Trigger(attribute=a, value=f"{names.get(a, a)} {i}") for a, i in values]
    tested = p_values(pools, [Hypothesis("association", "x", "failure", (t,)) for t in triggers], 0.05, 1)
    assert np.count_nonzero(tested <= 0.01) <= 3
    assert np.median(tested) > 0.15


def test_parts_of_subjects_are_half_and_two_quarters() -> None:
    part = world(8000, (), seed=1).now
    subjects = np.unique(part.subject, return_index=True)[1]
    counts = np.bincount(part.part()[subjects]) / len(subjects)
    assert abs(counts[FORMING] - 0.5) < 0.03
    assert abs(counts[FIRST] - 0.25) < 0.03
