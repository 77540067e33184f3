"""Pairs of answers: an order that says nothing, the same for a rater each time, and ids that cannot be made up."""

from __future__ import annotations

import pytest

from ratchet.console.pairs import Pair, PairKey, is_swapped, key_of, keys_of, pair_of, preference_of
from ratchet.core.errors import BadRequest
from ratchet.core.preferences.rules.base import Try

ASKED = {"role": "user", "content": "Where?"}
KEY = PairKey("support", "a", "b")


def tried(trajectory_id: str, answer: str, task: str = "t") -> Try:
    return Try(trajectory_id, "support", task, messages=[ASKED, {"role": "assistant", "content": answer}])


def pair(one: Try, other: Try) -> Pair | None:
    return pair_of(PairKey("support", "a", "b"), {"a": one, "b": other})


def test_each_side_is_shown_first_to_half_of_raters_and_for_half_of_pairs() -> None:
    raters = [is_swapped(f"rater {n}", KEY) for n in range(1000)]
    pairs = [is_swapped("ada", PairKey("support", "a", f"b{n}")) for n in range(1000)]
    assert 400 < sum(raters) < 600
    assert 400 < sum(pairs) < 600
    assert [is_swapped(f"rater {n}", KEY) for n in range(1000)] == raters


def test_pair_is_made_of_two_readable_answers_to_one_question_that_differ() -> None:
    made = pair(tried("a", "here"), tried("b", "there"))
    assert made is not None
    assert made.start == 1
    assert pair(tried("a", "here"), tried("b", "here")) is None
    assert pair(tried("a", "here"), tried("b", "there", task="u")) is None
    assert pair_of(KEY, {"a": tried("a", "here")}) is None
    assert pair(Try("a", "support", "t", messages=[ASKED]), tried("b", "there")) is None


@pytest.mark.parametrize("rater", ["ada", "bob", "cy", "dee"])
def test_a_choice_names_the_side_that_its_rater_saw_and_has_one_id(rater: str) -> None:
    made = pair(tried("a", "here"), tried("b", "there"))
    assert made is not None
    left, right = made.sides(rater)
    chosen = preference_of(made, rater, "left", 0.5, "clear")
    assert (chosen.chosen_trajectory_id, chosen.rejected_trajectory_id) == (left.trajectory_id, right.trajectory_id)
    assert (chosen.prompt, chosen.chosen) == ([ASKED], left.messages[1:])
    assert (chosen.rater, chosen.source, chosen.confidence, chosen.labels) == (
        rater,
        "human",
        0.5,
        {"comment": "clear"},
    )
    assert chosen.group_key == "t"
    assert preference_of(made, rater, "left", 0.9, None).preference_id == chosen.preference_id
    assert preference_of(made, rater, "right", 0.5, None).preference_id != chosen.preference_id
    assert preference_of(made, f"{rater}!", "left", 0.5, None).preference_id != chosen.preference_id


def test_no_task_outweighs_the_others() -> None:
    keys = keys_of("support", [["d", "c", "b", "a"], ["y", "x"]])
    assert [(key.one, key.other) for key in keys] == [("c", "d"), ("x", "y"), ("b", "d"), ("a", "d")]
    assert all(key_of(key.pair_id) == key for key in keys)


@pytest.mark.parametrize("damaged", ["", "x", "???", "WyJhIl0", PairKey("support", "b", "a").pair_id, "A" * 2000])
def test_a_damaged_id_is_refused_in_words(damaged: str) -> None:
    with pytest.raises(BadRequest, match="is not the id of a pair"):
        key_of(damaged)


def test_a_task_that_was_tried_very_often_costs_no_more_than_another_one() -> None:
    """All pairs of these would be 200 million."""
    keys = keys_of("support", [[f"t{n}" for n in range(20_000)]])
    assert keys == [PairKey("support", *sorted(("t0", f"t{n}"))) for n in (1, 2, 3)]
