"""Pairs are derived from tries that differ, the same ones every time, and everything else is counted by reason."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from hypothesis import given, strategies as st

from ratchet.bus.message import JsonObject, named_id
from ratchet.core.preferences.derivation import Derivation, common_prompt, derive_pairs
from ratchet.core.preferences.rules.answer_length import AnswerLength
from ratchet.core.preferences.rules.base import Try
from ratchet.core.preferences.rules.retrieval import Retrieval
from ratchet.core.preferences.rules.reward_margin import RewardMargin

ASKED: list[JsonObject] = [{"role": "system", "content": "Help."}, {"role": "user", "content": "Where is it?"}]


def answer(text: str | None, **more: Any) -> JsonObject:
    return {"role": "assistant", "content": text, **more}


def tried(name: str, *answers: JsonObject, asked: list[JsonObject] = ASKED, **changes: Any) -> Try:
    values: dict[str, Any] = {"role": "support", "task_key": "task", "messages": [*asked, *answers]}
    return Try(trajectory_id=named_id("trajectory", name), **{**values, **changes})


def ids(derivation: Derivation) -> list[tuple[str, str]]:
    return [(pair.chosen.trajectory_id, pair.rejected.trajectory_id) for pair in derivation.pairs]


def test_verified_success_is_preferred_over_failure_whatever_rewards_are() -> None:
    good = tried("good", answer("It is here."), success=True, reward=0.5)
    bad = tried("bad", answer("No idea."), success=False, reward=0.5)
    derivation = derive_pairs([bad, good], RewardMargin())
    (pair,) = derivation.pairs
    preference = pair.preference()
    assert (preference.prompt, preference.chosen, preference.rejected) == (
        ASKED,
        [answer("It is here.")],
        [answer("No idea.")],
    )
    assert (preference.source, preference.rater, preference.confidence) == ("derived", "verified-outcome", 1.0)
    assert preference.preference_id == named_id("preference", "verified-outcome", good.trajectory_id, bad.trajectory_id)
    assert (preference.chosen_trajectory_id, preference.rejected_trajectory_id) == (
        good.trajectory_id,
        bad.trajectory_id,
    )


def test_a_pair_names_its_task_also_where_the_tries_have_no_group_key() -> None:
    tries = [tried("a", answer("x"), success=True), tried("b", answer("y"), success=False)]
    (pair,) = derive_pairs(tries, RewardMargin()).pairs
    assert pair.preference().group_key == "task"


def test_rewards_that_differ_by_the_margin_make_a_pair_and_others_do_not() -> None:
    tries = [tried(str(reward), answer(f"answer {reward}"), reward=reward) for reward in (0.1, 0.3, 0.45)]
    derivation = derive_pairs(tries, RewardMargin(margin=0.2))
    assert ids(derivation) == [
        (tries[2].trajectory_id, tries[0].trajectory_id),
        (tries[1].trajectory_id, tries[0].trajectory_id),
    ]
    assert derivation.skipped == {"no_difference": 1}
    assert derivation.pairs[0].preference().rater == "reward-margin"


def test_tasks_and_roles_are_never_mixed() -> None:
    tries = [
        tried("one", answer("a"), success=True),
        tried("other task", answer("b"), success=False, task_key="else"),
        tried("other role", answer("c"), success=False, role="sales"),
    ]
    derivation = derive_pairs(tries, RewardMargin())
    assert (derivation.pairs, derivation.tasks, derivation.comparisons) == ([], 3, 0)


def test_what_cannot_be_a_pair_is_counted_by_reason() -> None:
    def skipped(*tries: Try) -> dict[str, int]:
        derivation = derive_pairs(tries, RewardMargin())
        assert not derivation.pairs
        return dict(derivation.skipped)

    good, bad = {"success": True}, {"success": False}
    assert skipped(tried("a", answer("x"), **good), tried("b", answer("x"), **bad)) == {"identical": 1}
    assert skipped(tried("a", answer(" "), **good), tried("b", answer("x"), **bad)) == {"empty": 1}
    assert skipped(tried("a", **good), tried("b", answer("x"), **bad)) == {"empty": 1}
    assert skipped(tried("a", answer("x"), reward=0.5), tried("b", answer("y"))) == {"no_reward": 1}
    other = [{"role": "system", "content": "Be brief."}, *ASKED[1:]]
    assert skipped(tried("a", answer("x"), **good), tried("b", answer("y"), asked=other, **bad)) == {
        "no_common_prompt": 1
    }


def test_only_what_the_policy_wrote_makes_answers_differ() -> None:
    good = tried("a", answer("x"), {"role": "user", "content": "thanks"}, answer("bye"), success=True)
    bad = tried("b", answer("x"), {"role": "user", "content": "no"}, answer("bye"), success=False)
    assert derive_pairs([good, bad], RewardMargin()).skipped == {"identical": 1}


def test_two_texts_preferred_over_each_other_cancel_out() -> None:
    opposite = [
        tried("a", answer("x"), success=True),
        tried("b", answer("y"), success=False),
        tried("c", answer("y"), success=True),
        tried("d", answer("x"), success=False),
    ]
    derivation = derive_pairs(opposite, RewardMargin())
    assert not derivation.pairs
    assert derivation.skipped == {"identical": 2, "opposite_order": 2, "no_reward": 2}
    repeated = [opposite[0], opposite[1], tried("e", answer("y"), success=False)]
    derivation = derive_pairs(repeated, RewardMargin())
    assert (len(derivation.pairs), derivation.skipped) == (1, {"duplicate": 1, "no_reward": 1})


def test_the_pairs_of_a_task_are_bounded_and_spread_over_its_tries() -> None:
    tries = [tried(f"good {n}", answer(f"good {n}"), success=True) for n in range(3)]
    tries += [tried(f"bad {n}", answer(f"bad {n}"), success=False) for n in range(3)]
    derivation = derive_pairs(tries, RewardMargin(), max_per_task=3)
    assert len({trajectory for pair in ids(derivation) for trajectory in pair}) == 6
    assert derivation.skipped == {"beyond_max_per_task": 6, "no_reward": 6}


def test_the_prompt_is_the_longest_shared_beginning_before_both_answer() -> None:
    call = answer(None, tool_calls=[{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}])
    result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    assert common_prompt([*ASKED, call, result, answer("42")], [*ASKED, call, result, answer("41")]) == 4
    other = {**result, "content": "43"}
    assert common_prompt([*ASKED, call, result, answer("42")], [*ASKED, call, other, answer("42")]) == 2
    assert common_prompt([*ASKED, answer("a")], [*ASKED, answer("a"), ASKED[1], answer("b")]) == 2
    assert common_prompt([answer("a")], [answer("b")]) == 0
    rephrased = [ASKED[0], {"role": "user", "content": "Where has it gone?"}]
    assert common_prompt([*ASKED, answer("a")], [*rephrased, answer("b")]) == 1
    assert common_prompt([{"content": "Where?", "role": "user"}, answer("a")], [ASKED[1], answer("b")]) == 0
    assert common_prompt([{"content": "Where is it?", "role": "user"}, answer("a")], [ASKED[1], answer("b")]) == 1


def test_reasonable_length_is_preferred_where_one_alone_has_it() -> None:
    rule = AnswerLength(shortest=5, longest=10)
    fits, short, long = (tried(name, answer(name)) for name in ("just so", "no", "far too long an answer"))
    derivation = derive_pairs([fits, short, long], rule)
    assert {pair.preference().source for pair in derivation.pairs} == {"heuristic"}
    assert sorted(ids(derivation)) == sorted(
        [(fits.trajectory_id, short.trajectory_id), (fits.trajectory_id, long.trajectory_id)]
    )
    assert derivation.skipped == {"inconclusive": 1}
    assert {pair.preference().confidence for pair in derivation.pairs} == {None}


def test_no_rule_of_thumb_prefers_what_is_known_to_be_worse() -> None:
    rule = AnswerLength(shortest=5, longest=10)
    worse = tried("just so", answer("just so"), reward=0.4)
    better = tried("no", answer("no"), reward=0.5)
    assert derive_pairs([worse, better], rule).skipped == {"contradicted_by_reward": 1}
    failed = tried("just so", answer("just so"), success=False)
    worked = tried("no", answer("no"), success=True)
    assert derive_pairs([failed, worked], rule).skipped == {"contradicted_by_reward": 1}


def test_retrieval_is_compared_with_none_and_with_nothing_else() -> None:
    with_rag = tried("with", answer("It is in the annex."), rag=True, reward=0.9)
    plain = tried("plain", answer("I do not know."), rag=False, reward=0.2)
    second = tried("second", answer("It is lost."), rag=False, reward=0.9)
    silent = tried("silent", answer("Hm."), reward=0.0)
    derivation = derive_pairs([with_rag, plain, second, silent], Retrieval())
    assert ids(derivation) == [(with_rag.trajectory_id, plain.trajectory_id)]
    assert (derivation.pairs[0].source, derivation.pairs[0].preference().rater) == ("rag", "rag-reward-margin")
    assert derivation.skipped == {"no_difference": 1, "not_rag_against_plain": 1, "no_rag_label": 3}


TRIES = st.lists(
    st.builds(
        lambda number, task, text, reward, success, rag: tried(
            str(number), answer(text), task_key=task, reward=reward, success=success, rag=rag
        ),
        number=st.integers(0, 999),
        task=st.sampled_from(["a", "b"]),
        text=st.sampled_from(["", "x", "y", "a long answer of more than twenty characters"]),
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
    derivation = derive_pairs(tries, rule, limit)
    shuffled = list(tries)
    shuffling.shuffle(shuffled)
    assert derive_pairs(shuffled, rule, limit) == derivation


@given(TRIES, RULES, st.integers(0, 5))
def test_comparison_is_a_pair_of_two_answers_or_counted(tries: list[Try], rule: Any, limit: int) -> None:
    derivation = derive_pairs(tries, rule, limit)
    assert len(derivation.pairs) + sum(derivation.skipped.values()) == derivation.comparisons
    assert len({pair.preference_id for pair in derivation.pairs}) == len(derivation.pairs)
    for pair in derivation.pairs:
        preference = pair.preference()
        assert preference.prompt
        assert preference.chosen != preference.rejected
        assert pair.chosen.task_key == pair.rejected.task_key
    tasks = [pair.chosen.task_key for pair in derivation.pairs]
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
