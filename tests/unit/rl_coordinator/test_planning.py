"""The planner proposes what the shape of a role's data carries, and says why not the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ratchet.contract.training import DatasetFilter
from ratchet.datasets.domain.selection import Candidate
from ratchet.rl_coordinator.jobs.domain.planning import Shape, Tries, plan, tries_of
from ratchet.rules.algorithms import BUILT_IN
from tests.support.training import NOON

OFFERED = frozenset(one.name for one in BUILT_IN)
NOTHING = Shape(
    tries=Tries(rewarded=0, successes=0, trainable=0, groups=0, mixed_groups=0, singletons=0),
    stale_share=None,
    pairs=0,
    thumbs_up=0,
    thumbs_down=0,
    ess=None,
    has_imitated=False,
)


def shaped(**changes: Any) -> Shape:
    tries = {name: changes.pop(name) for name in Tries.__dataclass_fields__ if name in changes}
    return replace(NOTHING, tries=replace(NOTHING.tries, **tries), **changes)


GRADIENT = {"rewarded": 1200, "successes": 60, "trainable": 1200, "groups": 160, "mixed_groups": 40}


@pytest.mark.parametrize(
    ("shape", "algorithm"),
    [
        (NOTHING, None),
        (shaped(rewarded=1213, successes=762), "sft"),
        (shaped(rewarded=1213, successes=762, pairs=900, mixed_groups=40, groups=160), "sft"),
        (shaped(rewarded=1213, successes=762, mixed_groups=40, groups=160, has_imitated=True), "rloo"),
        (shaped(rewarded=1213, successes=762, pairs=900, mixed_groups=40, groups=160, has_imitated=True), "dpo"),
        (shaped(rewarded=1213, successes=762, has_imitated=True), "sft"),
        (shaped(rewarded=1000, successes=299), None),
        (shaped(rewarded=1000, successes=299, pairs=500), "dpo"),
        (shaped(rewarded=99, successes=99), None),
        (shaped(**GRADIENT), "rloo"),
        (shaped(**GRADIENT | {"mixed_groups": 19}), None),
        (shaped(**GRADIENT | {"mixed_groups": 19, "singletons": 200}), "reinforce"),
        (shaped(**GRADIENT, stale_share=0.6), None),
        (shaped(**GRADIENT, stale_share=0.6, thumbs_up=90, thumbs_down=10), "kto"),
        (shaped(**GRADIENT, ess=0.05), None),
        (shaped(**GRADIENT, ess=0.31, stale_share=0.5), "rloo"),
        (shaped(thumbs_up=100), None),
        (shaped(pairs=499), None),
    ],
)
def test_what_is_proposed(shape: Shape, algorithm: str | None) -> None:
    chosen = plan(shape, OFFERED).chosen
    assert (chosen.algorithm if chosen else None) == algorithm


def test_imitation_takes_successes_alone_and_the_others_take_everything() -> None:
    assert plan(shaped(rewarded=1213, successes=762), OFFERED).filter == DatasetFilter(min_reward=0.5)
    assert plan(shaped(**GRADIENT), OFFERED).filter is None


def test_every_offered_way_is_explained_with_its_numbers() -> None:
    proposal = plan(shaped(rewarded=1213, successes=762, pairs=46, groups=160, mixed_groups=40), OFFERED)
    assert {one.algorithm: one.why for one in proposal.rejected} == {
        "dpo": "46 preference pairs; below 500 it shows little",
        "reward_model": "46 preference pairs; it scores answers, and no role is served by it",
        "rloo": "40 of 160 groups of tries differ in reward: each try is compared with the others at its task;"
        " sft comes first",
        "reinforce": "0 tasks with a single try; it needs 200",
        "kto": "0 thumbs up and 0 down; it needs 100, and 10 of each kind",
    }
    assert proposal.explanation.startswith("planned sft: 762 of 1213 rewarded trajectories succeeded (63%): imitating")


def test_old_data_and_collapsed_weights_are_reasons_against_a_policy_gradient() -> None:
    old = plan(shaped(**GRADIENT, stale_share=0.6), OFFERED).explanation
    assert "not rloo: 60% of its data are of other policies than the stable one" in old
    low = plan(shaped(**GRADIENT, ess=0.05), OFFERED).explanation
    assert "not rloo: the effective sample size of the last training was 0.05, below 0.3: collect newer data" in low


def test_what_is_not_offered_is_neither_proposed_nor_explained() -> None:
    proposal = plan(shaped(rewarded=1213, successes=762, pairs=900), frozenset({"dpo"}))
    assert proposal.chosen is not None
    assert (proposal.chosen.algorithm, list(proposal.rejected)) == ("dpo", [])


def candidate(name: str, task: str, reward: float, **changes: Any) -> Candidate:
    plain = Candidate(
        trajectory_id=name,
        task_key=task,
        ended_at=NOON + timedelta(seconds=1),
        reward=reward,
        confidence=1.0,
        source="client",
        domain=None,
        profile=None,
        turns=1,
        arms=frozenset({"stable"}),
        trainable_calls=1,
    )
    return replace(plain, **changes)


def test_tries_are_counted_by_task_without_what_teaches_nothing() -> None:
    stored = [
        candidate("a", "mixed", 1.0),
        candidate("b", "mixed", 0.0),
        candidate("c", "equal", 0.0),
        candidate("d", "equal", 0.0),
        candidate("e", "alone", 1.0),
        candidate("f", "mixed", 0.3, trainable_calls=0),
        candidate("learnt from", "alone", 0.7),
        candidate("pinned", "alone", 1.0, arms=frozenset({"pinned"})),
        candidate("unknown", "alone", 1.0, confidence=0.0),
    ]
    assert tries_of(stored, frozenset({"learnt from"})) == Tries(
        rewarded=7, successes=3, trainable=5, groups=2, mixed_groups=1, singletons=1
    )
