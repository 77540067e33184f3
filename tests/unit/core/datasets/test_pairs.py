"""Preferences become pairs of a snapshot: which opinion counts where several judged, and what a row holds."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.bus.message import named_id
from ratchet.core.contract import Preference
from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import Dataset, DatasetFilter, DateRange
from ratchet.core.datasets.domain.pairs import Opinion, PairRules, pair_row, select_pairs
from ratchet.core.datasets.domain.rows import SnapshotRow
from ratchet.rl_coordinator.jobs.domain.requests import Abilities, config_problems
from tests.support.training import AMOUNTS, after, config

ANY = PairRules(filter=DatasetFilter(), consumed=frozenset())


def opinion(name: str, sequence: int = 1, **changes: Any) -> Opinion:
    values: dict[str, Any] = {
        "source": "human",
        "rater": name,
        "domain": None,
        "at": after(sequence),
        "prompt": "p",
        "chosen": "x",
        "rejected": "y",
    }
    return Opinion(preference_id=name, sequence=sequence, **{**values, **changes})


def chosen(*opinions: Opinion, rules: PairRules = ANY, sample_size: int = 100) -> tuple[list[str], dict[str, int]]:
    selection = select_pairs(opinions, rules, sample_size)
    return [one.preference_id for one in selection.chosen], dict(selection.left_out)


def other_way(name: str, sequence: int, **changes: Any) -> Opinion:
    return opinion(name, sequence, chosen="y", rejected="x", **changes)


def test_the_newest_pairs_are_taken_oldest_first() -> None:
    several = [opinion(str(n), n, prompt=str(n)) for n in (3, 1, 2)]
    assert chosen(*several, sample_size=2) == (["2", "3"], {"beyond_sample_size": 1})


def test_a_task_with_several_derivations_keeps_only_its_newest_pairs() -> None:
    several = [opinion(str(n), n, prompt=str(n), group_key="task") for n in range(1, 5)]
    free = [opinion(f"free {n}", n, prompt=f"free {n}") for n in range(5, 8)]
    rules = PairRules(filter=DatasetFilter(), consumed=frozenset(), per_group=2)
    selected = chosen(*several, *free, opinion("other", 9, prompt="other", group_key="other"), rules=rules)
    assert selected == (["3", "4", "free 5", "free 6", "free 7", "other"], {"beyond_max_per_group": 2})


def test_a_majority_decides_and_its_pair_counts_once() -> None:
    selected = chosen(opinion("one", 1), opinion("two", 2), other_way("three", 3))
    assert selected == (["two"], {"duplicate": 1, "outvoted": 1})


def test_a_tie_teaches_nothing() -> None:
    assert chosen(opinion("one", 1), other_way("two", 2)) == ([], {"contradicted": 2})


def test_a_raters_newest_opinion_counts() -> None:
    derived = {"source": "derived", "rater": "reward-margin"}
    selected = chosen(opinion("before", 1, **derived), other_way("after", 2, **derived))
    assert selected == (["after"], {"superseded": 1})


def test_opinion_in_a_stream_made_anew_is_newer_than_those_before_it() -> None:
    later = other_way("after", 1, at=after(10), rater="ann")
    assert chosen(opinion("before", 9, rater="ann"), later) == (["after"], {"superseded": 1})


@pytest.mark.parametrize("prefix", ["", "rag-"])
def test_two_tests_of_one_rule_are_one_rater_whose_newer_opinion_counts(prefix: str) -> None:
    compared = opinion("before", 1, source="derived", rater=f"{prefix}reward-margin")
    verified = other_way("after", 2, source="derived", rater=f"{prefix}verified-outcome")
    assert chosen(compared, verified) == (["after"], {"superseded": 1})


def test_raters_without_a_name_are_different_raters() -> None:
    selected = chosen(opinion("a", 1, rater=None), opinion("b", 2, rater=None), other_way("c", 3, rater=None))
    assert selected == (["b"], {"duplicate": 1, "outvoted": 1})


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        (DatasetFilter(sources=["derived"]), "source"),
        (DatasetFilter(task_domains=["retail"]), "task_domain"),
        (DatasetFilter(date_range=DateRange(start=after(2))), "outside_date_range"),
        (DatasetFilter(date_range=DateRange(end=after(1))), "outside_date_range"),
        (DatasetFilter(excluded_raters=["one"]), "excluded_rater"),
        (DatasetFilter(excluded_raters=["human/one"]), "excluded_rater"),
        (DatasetFilter(min_human_share=0.5, sources=["derived"]), "source"),
    ],
)
def test_filters_name_the_reason(filters: DatasetFilter, reason: str) -> None:
    rules = PairRules(filter=filters, consumed=frozenset())
    assert chosen(opinion("one", 1, domain="airline"), rules=rules) == ([], {reason: 1})


def test_a_margin_is_the_confidence_and_a_plain_choice_of_a_person_passes() -> None:
    near = opinion("near", 1, prompt="1", source="derived", confidence=0.7 - 0.5)
    below = opinion("below", 2, prompt="2", source="derived", confidence=0.19)
    unmeasured = opinion("unmeasured", 3, prompt="3", source="heuristic")
    person, unsure = opinion("person", 4, prompt="4"), opinion("unsure", 5, prompt="5", confidence=0.1)
    rules = PairRules(filter=DatasetFilter(min_margin=0.2), consumed=frozenset())
    selected = chosen(near, below, unmeasured, person, unsure, rules=rules)
    assert selected == (["near", "person"], {"below_min_margin": 2, "no_margin": 1})


def test_a_rater_that_is_left_out_decides_no_majority() -> None:
    opinions = [opinion("one", 1), other_way("two", 2, rater="bob"), other_way("three", 3, rater="bob's double")]
    assert chosen(*opinions) == (["three"], {"duplicate": 1, "outvoted": 1})
    rules = PairRules(filter=DatasetFilter(excluded_raters=["bob", "human/bob's double"]), consumed=frozenset())
    assert chosen(*opinions, rules=rules) == (["one"], {"excluded_rater": 2})


def test_people_keep_their_share_and_the_others_are_counted() -> None:
    people = [opinion(f"person {n}", n, prompt=f"person {n}") for n in range(1, 5)]
    derived = [opinion(f"rule {n}", n, prompt=f"rule {n}", source="derived") for n in range(5, 10)]
    rules = PairRules(filter=DatasetFilter(min_human_share=0.8), consumed=frozenset())
    names = [one.preference_id for one in people]
    assert chosen(*people, *derived, rules=rules) == ([*names, "rule 9"], {"beyond_human_share": 4})
    smaller = chosen(*people, *derived, rules=rules, sample_size=2)
    assert smaller == (["person 3", "person 4"], {"beyond_sample_size": 7})


def test_a_pair_that_lacks_an_answer_has_no_part_in_the_share() -> None:
    people = [opinion(f"person {n}", n, prompt=f"person {n}") for n in range(1, 3)]
    derived = [opinion(f"rule {n}", n, prompt=f"rule {n}", source="derived") for n in range(3, 6)]
    rules = PairRules(DatasetFilter(min_human_share=0.5), frozenset(), unusable={"person 2": "empty"})
    assert chosen(*people, *derived, rules=rules) == (["person 1", "rule 5"], {"empty": 1, "beyond_human_share": 2})


def test_a_pair_that_the_lineage_has_learned_from_is_not_chosen_again() -> None:
    rules = PairRules(filter=DatasetFilter(), consumed=frozenset({"old"}))
    selected = chosen(opinion("old", 1), opinion("new", 2, prompt="q"), rules=rules)
    assert selected == (["new"], {"consumed_by_lineage": 1})


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (PairRules(DatasetFilter(), frozenset({"after"})), "consumed_by_lineage"),
        (PairRules(DatasetFilter(date_range=DateRange(end=after(2))), frozenset()), "outside_date_range"),
    ],
)
def test_withdrawn_opinion_never_returns(rules: PairRules, reason: str) -> None:
    before, after_it = opinion("before", 1, rater="ann"), other_way("after", 2, rater="ann")
    assert chosen(before, after_it, rules=rules) == ([], {"superseded": 1, reason: 1})


def test_a_minority_does_not_win_when_the_majority_is_filtered_out() -> None:
    opinions = [opinion("one", 1, source="teacher"), opinion("two", 2, source="teacher"), other_way("three", 3)]
    rules = PairRules(filter=DatasetFilter(sources=["human"]), consumed=frozenset())
    assert chosen(*opinions, rules=rules) == ([], {"outvoted": 1, "duplicate": 1, "source": 1})


def test_newest_agreeing_opinion_that_passes_the_filters_represents_others() -> None:
    opinions = [opinion("one", 1), opinion("two", 2, source="teacher")]
    rules = PairRules(filter=DatasetFilter(sources=["human"]), consumed=frozenset())
    assert chosen(*opinions, rules=rules) == (["one"], {"duplicate": 1})


def test_agreeing_opinions_are_learned_once_and_consumed_together() -> None:
    opinions = [opinion("one", 1), opinion("two", 2), other_way("three", 3)]
    selection = select_pairs(opinions, ANY, 10)
    assert selection.votes == {"two": ("one", "two")}
    assert made(pair_row(preference(), selection.votes["two"])).origin.preferences == (named_id("pair"), "one", "two")
    rules = PairRules(filter=DatasetFilter(), consumed=frozenset({"one", "two"}))
    assert chosen(*opinions, opinion("four", 4), rules=rules)[0] == []


def test_changed_majority_is_learned_although_opposite_was_learned_before() -> None:
    opinions = [opinion("one", 1), other_way("two", 2), other_way("three", 3)]
    rules = PairRules(filter=DatasetFilter(), consumed=frozenset({"one"}))
    assert chosen(*opinions, rules=rules)[0] == ["three"]


def made(result: SnapshotRow | str) -> SnapshotRow:
    assert isinstance(result, SnapshotRow)
    return result


def preference(**changes: Any) -> Preference:
    values: dict[str, Any] = {
        "preference_id": named_id("pair"),
        "prompt": "Where is it?",
        "chosen": "In the annex.",
        "rejected": [{"role": "assistant", "content": "No idea."}],
        "source": "human",
    }
    return Preference(**{**values, **changes})


def test_a_plain_text_becomes_a_message_of_its_side() -> None:
    pair = made(pair_row(preference()))
    row = pair.row
    assert isinstance(row, PairRow)
    assert row.prompt == [{"role": "user", "content": "Where is it?"}]
    assert row.chosen == [{"role": "assistant", "content": "In the annex."}]
    assert row.rejected == [{"role": "assistant", "content": "No idea."}]
    assert (row.tools, pair.origin.rater, pair.origin.trajectories) == ([], "unnamed", ())


def test_the_origin_of_a_derived_pair_names_its_tries() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    pair = made(pair_row(preference(chosen_trajectory_id="t1", rejected_trajectory_id="t2", rater="r", tools=tools)))
    assert pair.origin.trajectories == ("t1", "t2")
    assert (pair.origin.preferences, pair.origin.rater) == ((named_id("pair"),), "r")
    assert pair.row.tools == tools


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt": " "}, "empty"),
        ({"chosen": ""}, "empty"),
        ({"rejected": [{"role": "assistant", "content": None}]}, "empty"),
        ({"rejected": [{"role": "user", "content": "and you?"}]}, "not_an_answer"),
        ({"chosen": "No idea."}, "identical"),
    ],
)
def test_a_row_that_cannot_be_made_has_a_reason(changes: dict[str, Any], reason: str) -> None:
    assert pair_row(preference(**changes)) == reason


@pytest.mark.parametrize(
    ("algorithm", "filters", "problem"),
    [
        ("dpo", {"min_reward": 0.5}, "min_reward does nothing for dpo, which learns from preference pairs"),
        ("dpo", {"max_reward": 0.5}, "max_reward does nothing for dpo, which learns from preference pairs"),
        ("sft", {"min_human_share": 0.8}, "min_human_share does nothing for sft, which learns from trajectories"),
        ("sft", {"excluded_raters": ["ann"]}, "excluded_raters does nothing for sft, which learns from trajectories"),
        ("kto", {"min_margin": 0.1}, "min_margin does nothing for kto, which learns from thumbs"),
    ],
)
def test_filters_that_rows_do_not_have_are_refused(algorithm: str, filters: dict[str, Any], problem: str) -> None:
    dataset = Dataset(source="clickhouse", sample_size=10, filter=DatasetFilter(**filters))
    able = Abilities(training_enabled=True, algorithms=frozenset({algorithm}), amounts=AMOUNTS)
    assert config_problems(config(algorithm, "base", dataset=dataset), able) == [f"dataset.filter.{problem}"]


def test_more_rows_than_are_chosen_cannot_be_asked_for() -> None:
    dataset = Dataset(source="clickhouse", sample_size=10, min_rows=500)
    able = Abilities(training_enabled=True, algorithms=frozenset({"dpo"}), amounts=AMOUNTS)
    problems = config_problems(config("dpo", "base", dataset=dataset), able)
    assert problems == ["dataset.min_rows 500 is more than dataset.sample_size 10"]
