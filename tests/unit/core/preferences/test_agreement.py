"""Agreement of raters, by hand and by a published example; an outlier is no bad luck."""

from __future__ import annotations

import dataclasses
import random

import pytest

from ratchet.core.contract.state import RaterDecision
from ratchet.core.datasets.domain.pairs import Opinion
from ratchet.core.preferences.agreement import LEAST_SHARED, agreement, alpha
from ratchet.core.preferences.quarantine import left_out, standing
from tests.support.training import NOON


def opinion(number: int, rater: str | None, question: str, prefers_first: bool) -> Opinion:
    sides = (f"{question} 1", f"{question} 2")
    chosen, rejected = sides if prefers_first else sides[::-1]
    return Opinion(
        preference_id=str(number),
        source="human",
        rater=rater,
        domain=None,
        at=NOON,
        sequence=number,
        prompt=question,
        chosen=chosen,
        rejected=rejected,
        group_key=None,
    )


def judged(votes: list[dict[str, bool]]) -> list[Opinion]:
    every = [(rater, str(q), side) for q, one in enumerate(votes) for rater, side in one.items()]
    return [opinion(number, *each) for number, each in enumerate(every)]


def test_krippendorffs_own_example() -> None:
    """Computing Krippendorff's Alpha-Reliability (2011), part A: two observers, ten binary units."""
    meg, owen = "0100000010", "1110010000"
    votes = [{"meg": a == "1", "owen": b == "1"} for a, b in zip(meg, owen, strict=True)]
    assert alpha(votes) == pytest.approx(0.095, abs=5e-4)


def test_perfect_agreement_is_one_and_nothing_shared_is_unknown() -> None:
    assert agreement(judged([{"a": True, "b": True}, {"a": False, "b": False}])).alpha == 1.0
    alone = agreement(judged([{"a": True}, {"b": True}]))
    assert (alone.questions, alone.alpha, list(alone.raters)) == (0, None, [])


def test_newest_opinion_of_a_rater_counts_and_none_without_a_rater() -> None:
    given = [
        opinion(1, "a", "q", True),
        opinion(2, "b", "q", False),
        opinion(3, "a", "q", False),
        opinion(4, None, "q", True),
    ]
    (first, second) = agreement(given).raters
    assert (first.disagreed, second.disagreed) == (0, 0)


def test_rater_who_prefers_the_other_answer_is_an_outlier() -> None:
    draw = random.Random(3)
    votes = [
        {"ann": draw.random() < 0.9, "ben": draw.random() < 0.9, "cho": draw.random() < 0.9, "mal": draw.random() < 0.2}
        for _ in range(60)
    ]
    report = agreement(judged(votes))
    assert [one.rater for one in report.raters if one.is_outlier] == ["human/mal"]


def test_rater_of_few_questions_and_a_rule_are_not_quarantined() -> None:
    votes = [{"ann": True, "ben": True, "cho": True, "mal": False}]
    few, enough = agreement(judged(votes * 12)), agreement(judged(votes * LEAST_SHARED))
    assert [(one.rater, one.is_outlier, one.is_quarantined) for one in few.raters[:1]] == [("human/mal", True, False)]
    assert [one.rater for one in enough.raters if one.is_quarantined] == ["human/mal"]
    assert not dataclasses.replace(enough.raters[0], rater="derived/verified-outcome").is_quarantined


def test_a_person_releases_and_bans_raters_by_name_or_source_and_name() -> None:
    report = agreement(judged([{"ann": True, "ben": True, "cho": True, "mal": False}] * LEAST_SHARED))

    def decided(**decisions: str) -> dict[str, RaterDecision]:
        return {name: RaterDecision(decision=what, by="key:ops", at=NOON) for name, what in decisions.items()}

    assert left_out(report, {}) == ["human/mal"]
    assert left_out(report, decided(mal="released")) == []
    assert left_out(report, decided(ann="banned")) == ["ann", "human/mal"]
    assert left_out(report, {"human/mal": decided(x="released")["x"], **decided(mal="banned")}) == ["mal"]
    assert [standing(one, decided(ann="banned")) for one in report.raters][:1] == ["quarantined"]


def test_of_two_raters_who_disagree_neither_is_the_outlier() -> None:
    report = agreement(judged([{"a": True, "b": False}] * 50))
    assert [one.is_outlier for one in report.raters] == [False, False]
