"""Why a snapshot has a row, in words: by its format, and by the filter that the request asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from ratchet.core.contract.snapshot import ParquetFile, SnapshotManifest
from ratchet.core.contract.training import DatasetFilter, DateRange
from ratchet.core.datasets.domain.row_reasons import conditions, why_taken
from tests.support.messages import AT

TRIED: Mapping[str, Any] = {"reward": 0.5, "raw_reward": 0.5, "baseline": None, "policy_version": None}
COMPARED: Mapping[str, Any] = {"source": "derived", "rater": "reward-margin", "confidence": 0.35}
FIRST_OF_TRIES = "among the newest groups of tries, at most 64 rows"
ONE_POLICY = "no evaluation, and one policy from the first call to the last"
NEW = "this line of policies has not learned from it"


def manifest(form: str, algorithm: str, chosen: DatasetFilter | None = None) -> SnapshotManifest:
    return SnapshotManifest(
        kind="snapshot",
        role="support",
        training_job_id="",
        algorithm=algorithm,
        created_at=AT,
        filters=msgspec.to_builtins(chosen or DatasetFilter()),
        sample_size=64,
        reward_function="standard 1",
        reward_transform="identity",
        watermarks={},
        parent_policy=None,
        left_out={},
        trajectories=[],
        rows=1,
        parquet=ParquetFile(uri="s3://b/rows", sha256="a" * 64, size=1),
        format=form,
    )


@pytest.mark.parametrize(
    ("changes", "chosen", "words"),
    [
        ({}, DatasetFilter(), "reward 0.5"),
        ({}, DatasetFilter(min_reward=0.4, max_reward=0.9), "reward 0.5, at least 0.4 and at most 0.9"),
        ({"reward": -0.5}, DatasetFilter(), "reward 0.5; it learns from -0.5, transformed"),
        ({"baseline": 0.2}, DatasetFilter(), "reward 0.5; 0.3 above the 0.2 expected of its task"),
        ({"baseline": 0.75}, DatasetFilter(), "reward 0.5; 0.25 below the 0.75 expected of its task"),
        ({"baseline": 0.5}, DatasetFilter(), "reward 0.5; the 0.5 that was expected of its task"),
        ({"policy_version": 3}, DatasetFilter(), "reward 0.5; version 3 answered"),
    ],
)
def test_try_shows_its_reward_beside_the_filter(changes: Mapping[str, Any], chosen: DatasetFilter, words: str) -> None:
    assert why_taken({**TRIED, **changes}, manifest("trajectories", "rloo", chosen)) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "reward-margin (derived) preferred it; by 0.35"),
        ({"confidence": None}, "reward-margin (derived) preferred it"),
        ({"rater": None, "source": "heuristic", "confidence": None}, "heuristic preferred it"),
        ({"rater": None, "source": "human", "confidence": None}, "a person preferred it"),
        ({"rater": "ada", "source": "human", "confidence": 0.8}, "ada preferred it; confidence 0.8"),
    ],
)
def test_a_pair_shows_who_preferred_and_by_how_much(changes: Mapping[str, Any], words: str) -> None:
    assert why_taken({**COMPARED, **changes}, manifest("pairs", "dpo")) == words


def test_a_label_shows_its_thumbs() -> None:
    assert why_taken({"label": True}, manifest("labels", "kto")) == "thumbs up by most raters"
    assert why_taken({"label": False}, manifest("labels", "kto")) == "thumbs down by most raters"


def test_conditions_are_the_formats_own_and_those_of_the_filter() -> None:
    evidence = "the reward has evidence, and a call has what this algorithm learns from"
    near = "answered by policies at most 8 generations away, or of unknown age"
    assert conditions(manifest("trajectories", "rloo")) == [FIRST_OF_TRIES, ONE_POLICY, evidence, NEW, near]
    assert conditions(manifest("trajectories", "sft")) == [FIRST_OF_TRIES, ONE_POLICY]
    agreed = "most of its raters' thumbs agree"
    assert conditions(manifest("labels", "kto")) == [FIRST_OF_TRIES, ONE_POLICY, agreed, NEW]
    asked = DatasetFilter(
        min_reward=0.4,
        max_trajectory_length=9,
        balance_domains=True,
        sources=["client"],
        task_domains=["a", "b"],
        exclude_subordinate_profiles=["scout"],
        max_staleness=2,
        date_range=DateRange(start=AT),
        excluded_raters=["eve"],
    )
    assert conditions(manifest("trajectories", "sft", asked)) == [
        FIRST_OF_TRIES,
        "each domain at most its equal share while others have more",
        ONE_POLICY,
        "answered by policies at most 2 generations away, or of unknown age",
        "the reward is at least 0.4",
        "at most 9 turns",
        "not of the profiles scout",
        "its source is one of client",
        "its domain is one of a, b",
        "without the opinions of eve",
        f"from {AT.isoformat()}",
    ]


def test_a_limit_of_one_generation_is_in_the_singular() -> None:
    one = DatasetFilter(max_staleness=1)
    last = conditions(manifest("trajectories", "sft", one))[-1]
    assert last == "answered by policies at most 1 generation away, or of unknown age"


def test_conditions_of_pairs_name_the_margin_and_the_share_of_people() -> None:
    plain, narrowed = (
        conditions(manifest("pairs", "dpo", one))
        for one in (DatasetFilter(), DatasetFilter(min_margin=0.2, min_human_share=0.5))
    )
    assert plain[0] == "among the newest, at most 64 pairs"
    assert narrowed[len(plain) :] == [
        "preferred by at least 0.2, or by a person",
        "people's pairs are at least 50% of all",
    ]
