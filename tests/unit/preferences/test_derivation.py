"""Pairs are derived from tries that differ, the same ones every time, and everything else is counted by reason."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratchet.bus.message import JsonObject, named_id
from ratchet.preferences.derivation import Derivation, common_prompt, derive_pairs
from ratchet.preferences.rules.answer_length import AnswerLength
from ratchet.preferences.rules.base import Try
from ratchet.preferences.rules.retrieval import Retrieval
from ratchet.preferences.rules.reward_margin import RewardMargin

ASKED: list[JsonObject] = [{"role": "system", "content": "Help."}, {"role": "user", "content": "Where is it?"}]


def says(text: str | None, **more: Any) -> JsonObject:
    return {"role": "assistant", "content": text, **more}


def tried(name: str, *answers: JsonObject, asked: list[JsonObject] = ASKED, **changes: Any) -> Try:
    values: dict[str, Any] = {"role": "support", "task_key": "task", "messages": [*asked, *answers]}
    return Try(trajectory_id=named_id("trajectory", name), **{**values, **changes})


def ids(derivation: Derivation) -> list[tuple[str, str]]:
    return [(pair.chosen.trajectory_id, pair.rejected.trajectory_id) for pair in derivation.pairs]


def test_a_verified_success_is_preferred_over_a_verified_failure_whatever_the_rewards() -> None:
    good = tried("good", says("It is here."), success=True, reward=0.5)
    bad = tried("bad", says("No idea."), success=False, reward=0.5)
    found = derive_pairs([bad, good], RewardMargin())
    (pair,) = found.pairs
    told = pair.preference()
    assert (told.prompt, told.chosen, told.rejected) == (ASKED, [says("It is here.")], [says("No idea.")])
    assert (told.source, told.rater, told.confidence) == ("derived", "verified-outcome", 1.0)
    assert told.preference_id == named_id("preference", "verified-outcome", good.trajectory_id, bad.trajectory_id)
    assert (told.chosen_trajectory_id, told.rejected_trajectory_id) == (good.trajectory_id, bad.trajectory_id)


def test_a_pair_names_its_task_also_where_the_tries_have_no_group_key() -> None:
    tries = [tried("a", says("x"), success=True), tried("b", says("y"), success=False)]
    (pair,) = derive_pairs(tries, RewardMargin()).pairs
    assert pair.preference().group_key == "task"


def test_rewards_that_differ_by_the_margin_make_a_pair_and_others_do_not() -> None:
    tries = [tried(str(reward), says(f"answer {reward}"), reward=reward) for reward in (0.1, 0.3, 0.45)]
    found = derive_pairs(tries, RewardMargin(margin=0.2))
    assert ids(found) == [
        (tries[2].trajectory_id, tries[0].trajectory_id),
        (tries[1].trajectory_id, tries[0].trajectory_id),
    ]
    assert found.skipped == {"no_difference": 1}
    assert found.pairs[0].preference().rater == "reward-margin"


def test_tasks_and_roles_are_never_mixed() -> None:
    tries = [
        tried("one", says("a"), success=True),
        tried("other task", says("b"), success=False, task_key="else"),
        tried("other role", says("c"), success=False, role="sales"),
    ]
    found = derive_pairs(tries, RewardMargin())
    assert (found.pairs, found.tasks, found.comparisons) == ([], 3, 0)


def test_what_cannot_be_a_pair_is_counted_by_reason() -> None:
    def skipped(*tries: Try) -> dict[str, int]:
        found = derive_pairs(tries, RewardMargin())
        assert not found.pairs
        return dict(found.skipped)

    good, bad = {"success": True}, {"success": False}
    assert skipped(tried("a", says("x"), **good), tried("b", says("x"), **bad)) == {"identical": 1}
    assert skipped(tried("a", says(" "), **good), tried("b", says("x"), **bad)) == {"empty": 1}
    assert skipped(tried("a", **good), tried("b", says("x"), **bad)) == {"empty": 1}
    assert skipped(tried("a", says("x"), reward=0.5), tried("b", says("y"))) == {"no_reward": 1}
    other = [{"role": "system", "content": "Be brief."}, *ASKED[1:]]
    assert skipped(tried("a", says("x"), **good), tried("b", says("y"), asked=other, **bad)) == {"no_common_prompt": 1}


def test_only_what_the_policy_wrote_makes_answers_differ() -> None:
    good = tried("a", says("x"), {"role": "user", "content": "thanks"}, says("bye"), success=True)
    bad = tried("b", says("x"), {"role": "user", "content": "no"}, says("bye"), success=False)
    assert derive_pairs([good, bad], RewardMargin()).skipped == {"identical": 1}


def test_two_texts_preferred_over_each_other_say_nothing_and_a_repeated_pair_counts_once() -> None:
    opposite = [
        tried("a", says("x"), success=True),
        tried("b", says("y"), success=False),
        tried("c", says("y"), success=True),
        tried("d", says("x"), success=False),
    ]
    found = derive_pairs(opposite, RewardMargin())
    assert not found.pairs
    assert found.skipped == {"identical": 2, "opposite_order": 2, "no_reward": 2}
    repeated = [opposite[0], opposite[1], tried("e", says("y"), success=False)]
    found = derive_pairs(repeated, RewardMargin())
    assert (len(found.pairs), found.skipped) == (1, {"duplicate": 1, "no_reward": 1})


def test_the_pairs_of_a_task_are_bounded_and_spread_over_its_tries() -> None:
    tries = [tried(f"good {n}", says(f"good {n}"), success=True) for n in range(3)]
    tries += [tried(f"bad {n}", says(f"bad {n}"), success=False) for n in range(3)]
    found = derive_pairs(tries, RewardMargin(), max_per_task=3)
    assert len({trajectory for pair in ids(found) for trajectory in pair}) == 6
    assert found.skipped == {"beyond_max_per_task": 6, "no_reward": 6}


def test_the_prompt_is_the_longest_shared_beginning_before_both_answer() -> None:
    call = says(None, tool_calls=[{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}])
    result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    assert common_prompt([*ASKED, call, result, says("42")], [*ASKED, call, result, says("41")]) == 4
    other = {**result, "content": "43"}
    assert common_prompt([*ASKED, call, result, says("42")], [*ASKED, call, other, says("42")]) == 2
    assert common_prompt([*ASKED, says("a")], [*ASKED, says("a"), ASKED[1], says("b")]) == 2
    assert common_prompt([says("a")], [says("b")]) == 0
    rephrased = [ASKED[0], {"role": "user", "content": "Where has it gone?"}]
    assert common_prompt([*ASKED, says("a")], [*rephrased, says("b")]) == 1
    assert common_prompt([{"content": "Where?", "role": "user"}, says("a")], [ASKED[1], says("b")]) == 0
    assert common_prompt([{"content": "Where is it?", "role": "user"}, says("a")], [ASKED[1], says("b")]) == 1


def test_a_reasonable_length_is_preferred_and_nothing_is_said_when_both_or_neither_have_it() -> None:
    rule = AnswerLength(shortest=5, longest=10)
    fits, short, long = (tried(name, says(name)) for name in ("just so", "no", "far too long an answer"))
    found = derive_pairs([fits, short, long], rule)
    assert {pair.preference().source for pair in found.pairs} == {"heuristic"}
    assert sorted(ids(found)) == sorted(
        [(fits.trajectory_id, short.trajectory_id), (fits.trajectory_id, long.trajectory_id)]
    )
    assert found.skipped == {"inconclusive": 1}
    assert {pair.preference().confidence for pair in found.pairs} == {None}


def test_no_rule_of_thumb_prefers_what_is_known_to_be_worse() -> None:
    rule = AnswerLength(shortest=5, longest=10)
    worse = tried("just so", says("just so"), reward=0.4)
    better = tried("no", says("no"), reward=0.5)
    assert derive_pairs([worse, better], rule).skipped == {"contradicted_by_reward": 1}
    failed = tried("just so", says("just so"), success=False)
    worked = tried("no", says("no"), success=True)
    assert derive_pairs([failed, worked], rule).skipped == {"contradicted_by_reward": 1}


def test_retrieval_is_compared_with_none_and_with_nothing_else() -> None:
    with_rag = tried("with", says("It is in the annex."), rag=True, reward=0.9)
    plain = tried("plain", says("I do not know."), rag=False, reward=0.2)
    second = tried("second", says("It is lost."), rag=False, reward=0.9)
    silent = tried("silent", says("Hm."), reward=0.0)
    found = derive_pairs([with_rag, plain, second, silent], Retrieval())
    assert ids(found) == [(with_rag.trajectory_id, plain.trajectory_id)]
    assert (found.pairs[0].source, found.pairs[0].preference().rater) == ("rag", "rag-reward-margin")
    assert found.skipped == {"no_difference": 1, "not_rag_against_plain": 1, "no_rag_label": 3}


TRIES = st.lists(
    st.builds(
        lambda number, task, answer, reward, success, rag: tried(
            str(number), says(answer), task_key=task, reward=reward, success=success, rag=rag
        ),
        number=st.integers(0, 999),
        task=st.sampled_from(["a", "b"]),
        answer=st.sampled_from(["", "x", "y", "a long answer of more than twenty characters"]),
        reward=st.none() | st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]),
        success=st.none() | st.booleans(),
        rag=st.none() | st.booleans(),
    ),
    max_size=8,
    unique_by=lambda one: one.trajectory_id,
)
RULES = st.sampled_from([RewardMargin(), RewardMargin(0.5), AnswerLength(), Retrieval()])


@given(TRIES, RULES, st.integers(0, 5), st.randoms(use_true_random=False))
def test_any_order_of_tries_gives_the_same_pairs(
    tries: list[Try], rule: Any, limit: int, shuffling: random.Random
) -> None:
    found = derive_pairs(tries, rule, limit)
    shuffled = list(tries)
    shuffling.shuffle(shuffled)
    assert derive_pairs(shuffled, rule, limit) == found


@given(TRIES, RULES, st.integers(0, 5))
def test_every_comparison_is_a_pair_or_counted_and_every_pair_tells_two_answers_apart(
    tries: list[Try], rule: Any, limit: int
) -> None:
    found = derive_pairs(tries, rule, limit)
    assert len(found.pairs) + sum(found.skipped.values()) == found.comparisons
    assert len({pair.preference_id for pair in found.pairs}) == len(found.pairs)
    for pair in found.pairs:
        told = pair.preference()
        assert told.prompt
        assert told.chosen != told.rejected
        assert pair.chosen.task_key == pair.rejected.task_key
    tasks = [pair.chosen.task_key for pair in found.pairs]
    assert all(tasks.count(task) <= limit for task in tasks)


@given(TRIES, st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]))
def test_the_margin_is_honoured(tries: list[Try], margin: float) -> None:
    for pair in derive_pairs(tries, RewardMargin(margin)).pairs:
        if pair.chosen.success is True and pair.rejected.success is False:
            continue
        assert pair.chosen.reward is not None
        assert pair.rejected.reward is not None
        assert pair.chosen.reward - pair.rejected.reward >= margin - 1e-9
        assert pair.chosen.reward > pair.rejected.reward


@given(TRIES, RULES)
def test_swapping_two_tries_swaps_the_verdict(tries: list[Try], rule: Any) -> None:
    for one, other in pairwise(tries):
        there, back = rule.judge(one, other), rule.judge(other, one)
        if isinstance(there, str):
            assert back == there
        else:
            assert (back.first, back.rater, back.strength) == (not there.first, there.rater, there.strength)
