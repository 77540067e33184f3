"""The planner proposes what the shape of a role's data carries, and says why not the others."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.training import DatasetFilter, TrainingConfig
from ratchet.core.datasets.domain.selection import Candidate, TrajectoryRules, select
from ratchet.core.errors import Rejected
from ratchet.core.rules.algorithms import BUILT_IN
from ratchet.core.rules.defaults import DEFAULTS
from ratchet.rl_coordinator.jobs.domain.planning import (
    Shape,
    Tries,
    lasting_ess,
    plan,
    thumbs_of,
    tries_of,
    with_successes,
)
from ratchet.rl_coordinator.jobs.domain.requests import Abilities
from ratchet.rl_coordinator.jobs.planner import PLAIN, Planner
from ratchet.rl_coordinator.registry import Policies
from tests.support.training import AMOUNTS, NOON, registered

PINNED_ARM = frozenset({"pinned"})
OFFERED = frozenset(one.name for one in BUILT_IN)
NOTHING = Shape(
    tries=Tries(rewarded=0, successes=0, new_successes=0, trainable=0, groups=0, mixed_groups=0, singletons=0),
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
        (shaped(rewarded=1213, successes=762, pairs=900, mixed_groups=40, groups=160, has_imitated=True), "rloo"),
        (shaped(rewarded=1213, successes=762, pairs=900, mixed_groups=19, has_imitated=True), "dpo"),
        (shaped(rewarded=1213, successes=762, has_imitated=True), None),
        (
            shaped(rewarded=1213, successes=762, new_successes=99, groups=160, mixed_groups=40, has_imitated=True),
            "rloo",
        ),
        (
            shaped(rewarded=1213, successes=762, new_successes=100, groups=160, mixed_groups=40, has_imitated=True),
            "sft",
        ),
        (shaped(rewarded=1000, successes=299), None),
        (shaped(rewarded=1000, successes=299, pairs=500), "dpo"),
        (shaped(rewarded=99, successes=99), None),
        (shaped(**GRADIENT), "rloo"),
        (shaped(**GRADIENT | {"mixed_groups": 19}), None),
        (shaped(**GRADIENT | {"mixed_groups": 19, "singletons": 200}), "reinforce"),
        (shaped(**GRADIENT, old=720), None),
        (shaped(**GRADIENT, old=720, thumbs_up=90, thumbs_down=10), "kto"),
        (shaped(**GRADIENT, ess=0.05), None),
        (shaped(**GRADIENT, ess=0.31, old=600), "rloo"),
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


def test_a_proposal_names_its_evidence_and_its_recipe() -> None:
    proposal = plan(shaped(rewarded=1213, successes=762, mixed_groups=40, groups=160), OFFERED)
    row = DEFAULTS["sft"]
    assert proposal.chosen is not None
    assert f"{row.evidence}; 3 passes in batches of 16 at 0.0002" in proposal.chosen.why


def test_every_row_that_rests_on_a_page_has_its_figures_from_the_section() -> None:
    for one in (one for row in DEFAULTS.values() for one in row.measured):
        page, _, anchor = one.source.partition("#")
        parts = re.split(r"^#+ ", Path(page).read_text(), flags=re.MULTILINE)
        sections = {part.partition("\n")[0].lower().replace(" ", "-"): part for part in parts}
        figures = re.findall(r"(?<![\w.-])\.\d\d\b", one.figures)
        assert figures
        assert all(f"0{figure}" in sections[anchor] for figure in figures), one


def test_every_offered_way_is_explained_with_its_numbers() -> None:
    proposal = plan(shaped(rewarded=1213, successes=762, pairs=46, groups=160, mixed_groups=40), OFFERED)
    assert {one.algorithm: one.why for one in proposal.rejected} == {
        "gepa": "the gate has 0 held-out tasks: nothing but traffic could tell a better prompt"
        " (RATCHET_CANARY_TASK_FILES)",
        "dpo": "46 preference pairs; below 500 it shows little",
        "reward_model": "46 preference pairs; it scores answers, and no role is served by it",
        "rloo": "40 of 160 groups of trainable tries differ in reward: each try is compared with the others at its"
        " task; sft comes first",
        "reinforce": "0 tasks with a single trainable try; it needs 200",
        "kto": "0 thumbs up and 0 down; it needs 100, and 10 of each kind",
    }
    assert proposal.explanation.startswith(
        "planned sft: 762 of 1213 trajectories with a known outcome succeeded (63%): imitating"
    )


def test_old_data_and_collapsed_weights_speak_against_policy_gradients() -> None:
    old = plan(shaped(**GRADIENT, old=720), OFFERED).explanation
    assert "not rloo: 60% of its data are of policies 4 or more generations away: collect newer data" in old
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
    assert tries_of(stored, gradient(consumed=frozenset({"learnt from"}))) == Tries(
        rewarded=7, successes=3, new_successes=2, trainable=5, groups=2, mixed_groups=1, singletons=1
    )


def gradient(**changes: Any) -> TrajectoryRules:
    return replace(TrajectoryRules(DatasetFilter(), needs_calls=True, consumed=frozenset()), **changes)


def test_rewards_that_are_no_numbers_make_no_group_and_no_success() -> None:
    stored = [candidate(name, "task", math.nan) for name in "ab"] + [candidate("c", "task", math.inf)]
    assert tries_of(stored, gradient()) == NOTHING.tries


def test_age_counts_generations_whatever_numbers_were_refused() -> None:
    """Of 2, a parent, candidates 3 to 9 were refused before 10 was promoted: its data are one generation old."""
    line = [registered(1), *(registered(version, parent=1) for version in range(3, 10)), registered(10, parent=1)]
    chain = [registered(11, parent=10), registered(12, parent=11), registered(13, parent=12)]
    policies = Policies(None, {one.version: one for one in [*line, *chain]})
    of_parent, of_sibling = (
        [candidate(f"{version} {number}", "task", 0.5, versions=frozenset({version})) for number in range(4)]
        for version in (1, 9)
    )
    recent = tries_of([*of_parent, *of_sibling], gradient(generations=policies.generations(policies.versions[10].name)))
    assert (recent.trainable, recent.old) == (8, 0)
    later = tries_of([*of_parent, *of_sibling], gradient(generations=policies.generations(policies.versions[13].name)))
    assert (later.trainable, later.old) == (8, 8)


def test_what_is_too_old_for_a_policy_gradient_is_not_counted_for_one() -> None:
    stored = [candidate(str(n), "task", n / 10, versions=frozenset({1})) for n in range(8)]
    assert tries_of(stored, gradient(generations={1: 9})).trainable == 0


def test_low_sample_size_holds_policy_gradients_back_until_data_is_newer() -> None:
    stored = [candidate(str(n), "task", 1.0, ended_at=NOON + timedelta(hours=n)) for n in range(10)]
    assert lasting_ess(0.1, NOON + timedelta(hours=5), stored) == 0.1
    assert lasting_ess(0.1, NOON + timedelta(hours=3), stored) is None


def test_thumbs_are_counted_by_trajectory_as_a_job_would_take_them() -> None:
    stored = [candidate(name, "task", 0.5) for name in "abcde"] + [candidate("pinned", "t", 1.0, arms=PINNED_ARM)]
    given = {"a": True, "b": True, "c": False, "d": None, "e": True, "pinned": True, "not stored": False}
    rules = gradient(needs_calls=False, consumed=frozenset({"b"}))
    assert thumbs_of(stored, given, rules) == (2, 1)


def test_proposal_that_would_be_refused_gives_way_to_the_next_with_reason() -> None:
    shape = shaped(rewarded=1213, successes=762, pairs=900)
    proposal = plan(shape, OFFERED, {"sft": "a hyperparameter is not its own"})
    assert proposal.chosen is not None
    assert proposal.chosen.algorithm == "dpo"
    assert "not sft: 762 of 1213 trajectories with" in proposal.explanation
    assert "; but a hyperparameter is not its own" in proposal.explanation


def test_filter_that_a_request_names_keeps_what_it_names_and_gets_the_rest() -> None:
    successes = DatasetFilter(min_reward=0.5)
    assert with_successes(None, successes) == successes
    assert with_successes(DatasetFilter(task_domains=["a"]), successes) == DatasetFilter(
        task_domains=["a"], min_reward=0.5
    )
    assert with_successes(DatasetFilter(min_reward=0.9), successes) == DatasetFilter(min_reward=0.9)
    assert with_successes(DatasetFilter(task_domains=["a"]), None) == DatasetFilter(task_domains=["a"])


rewards = st.sampled_from([0.0, 0.3, 0.5, 1.0, math.nan, math.inf])
populations = st.lists(
    st.tuples(
        st.integers(1, 400),  # how many alike
        st.booleans(),  # tries of one task, or of as many
        st.lists(rewards, min_size=1, max_size=3),
        st.sampled_from([0, 1]),  # trainable calls
        st.sampled_from([0.0, 1.0]),  # confidence
        st.sampled_from([frozenset({1}), frozenset({2}), frozenset[int]()]),
        st.sampled_from(["stable", "pinned", "mixed"]),
    ),
    max_size=4,
)


@given(populations)
def test_whatever_is_there_a_proposal_of_trajectories_has_data(made: list[tuple[Any, ...]]) -> None:
    stored = [
        candidate(
            f"{part} {number}",
            f"task {part}" if together else f"task {part} {number}",
            among[number % len(among)],
            trainable_calls=calls,
            confidence=confidence,
            versions=versions,
            arms=frozenset({arm}),
        )
        for part, (count, together, among, calls, confidence, versions, arm) in enumerate(made)
        for number in range(count)
    ]
    rules = gradient(generations={1: 1, 2: 9})
    proposal = plan(replace(NOTHING, tries=tries_of(stored, rules)), OFFERED)
    if proposal.chosen is not None:
        algorithm = proposal.chosen.algorithm
        taken = replace(rules, filter=proposal.filter or DatasetFilter(), needs_calls=algorithm != "sft")
        assert len(select(stored, taken, 5000).chosen) >= AMOUNTS.least(algorithm)


def test_prompt_is_tried_first_where_the_gate_has_tasks() -> None:
    rich = shaped(**GRADIENT, held_out_tasks=120)
    first = plan(rich, OFFERED)
    assert first.chosen is not None
    assert (first.chosen.algorithm, "120 held-out tasks: a prompt costs some calls and no GPU" in first.chosen.why) == (
        "gepa",
        True,
    )
    then = plan(rich, OFFERED, {"gepa": "it needs a reflector"})
    assert then.chosen is not None
    assert then.chosen.algorithm == "rloo"
    without = plan(shaped(**GRADIENT), OFFERED)
    assert "RATCHET_CANARY_TASK_FILES" in {one.algorithm: one.why for one in without.rejected}["gepa"]


async def test_a_proposal_whose_job_would_be_refused_gives_way() -> None:
    class Refusing:
        async def require_data(self, _: str, config: TrainingConfig, holdout: float) -> list[str]:
            if config.algorithm == "sft" and holdout:
                raise Rejected("its ramp would not end")
            return []

    parts: Any = {"store": None, "policies": None, "data": None, "exporter": Refusing()}
    planner = Planner(**parts, abilities=Abilities(True, OFFERED, AMOUNTS))
    shape = shaped(rewarded=1213, successes=762, mixed_groups=40, groups=160)
    proposal = await planner.tried(shape, "support", PLAIN, 0.25, {})
    assert proposal.chosen is not None
    assert proposal.chosen.algorithm == "rloo"
    assert "but its ramp would not end" in proposal.explanation
