"""Calls become rows: what extends is merged, what drifts forks, what no later call continues is dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ratchet.core.contract.snapshot import Call, CallSpan, TokenSequence, TrajectoryRow
from ratchet.core.errors import Rejected
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.rows import MergeCounts, Row, policy_data, rows_of
from tests.support.snapshot_rows import call as logged_call, trajectory_row


def call(prompt: list[int], output: list[int], **changes: object) -> Call:
    return logged_call(prompt, output, [-0.5 - 0.01 * n for n in range(len(output))], **changes)


def rows_of_calls(calls: list[Call], counts: MergeCounts | None = None, **changes: Any) -> list[Row]:
    return rows_of(trajectory_row(calls=calls), counts, **changes)


def learnt(row: Row) -> list[int]:
    return row.trained_ids.tolist()


def test_a_conversation_that_only_grows_is_one_row() -> None:
    rows = rows_of_calls([call([1, 2], [3, 4]), call([1, 2, 3, 4, 9, 9], [5])])
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 4, 9, 9, 5]]
    assert rows[0].loss_mask.tolist() == [False, False, True, True, False, False, True]
    assert rows[0].behavior_logprobs.tolist() == pytest.approx([-0.5, -0.51, -0.5])


def test_a_history_that_was_rendered_again_starts_a_row_of_its_own() -> None:
    counts = MergeCounts()
    rows = rows_of_calls([call([1, 2], [3, 4]), call([1, 2, 3, 7], [5])], counts)
    assert [learnt(row) for row in rows] == [[3, 4], [5]]
    assert rows[1].token_ids.tolist() == [1, 2, 3, 7, 5]
    assert counts.forks == 1


def test_interleaved_conversations_each_stay_one_row() -> None:
    main, sub = call([1], [2]), call([8], [9])
    rows = rows_of_calls([main, sub, call([1, 2, 3], [4]), call([8, 9, 7], [6])])
    assert [learnt(row) for row in rows] == [[2, 4], [9, 6]]


def test_retry_whose_answer_was_read_learns_in_one_row_with_its_context() -> None:
    first, dropped, used = call([1], [9]), call([1, 9], [2]), call([1, 9], [3])
    counts = MergeCounts()
    (row,) = rows_of_calls([first, used, dropped, call([1, 9, 3, 5], [6])], counts)
    assert learnt(row) == [9, 3, 6]
    assert (counts.orphans, counts.forks) == (1, 0)
    assert [learnt(row) for row in rows_of_calls([dropped, used])] == [[3]]


def test_an_untrainable_call_is_context_and_does_not_learn() -> None:
    counts = MergeCounts()
    rows = rows_of_calls([call([1], [2], trainable=False, reason="top_p"), call([1, 2, 3], [4])], counts)
    assert [learnt(row) for row in rows] == [[4]]
    assert rows[0].token_ids.tolist() == [1, 2, 3, 4]
    assert counts.untrainable == {"top_p": 1}


def test_greedy_calls_and_calls_without_logprobs_do_not_learn() -> None:
    assert rows_of_calls([call([1], [2], temperature=0.0)]) == []
    assert rows_of_calls([logged_call([1], [2, 3], [-0.1])]) == []


def test_every_token_keeps_the_temperature_it_was_drawn_at() -> None:
    (row,) = rows_of_calls([call([1], [2], temperature=0.7), call([1, 2, 3], [4], temperature=1.3)])
    assert row.temperatures.tolist() == pytest.approx([0.7, 1.3])


def test_a_row_that_is_too_long_loses_its_end() -> None:
    counts = MergeCounts()
    rows = rows_of_calls([call([1, 2], [3, 4, 5])], counts, max_length=4)
    assert [learnt(row) for row in rows] == [[3, 4]]
    assert counts.truncated == 1
    assert rows_of_calls([call([1, 2], [3])], max_length=2) == []


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=6), st.data())
def test_every_output_learns_exactly_once_and_in_its_own_context(
    turns: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    """Whatever mixture of growing, drifting and restarting histories is logged."""
    calls: list[Call] = []
    history: list[int] = []
    for number, (seen, answer) in enumerate(turns):
        drift = data.draw(st.sampled_from(["grow", "cut", "restart"]))
        history = {"grow": history, "cut": history[: len(history) // 2], "restart": []}[drift]
        # A distinct token per call keeps two calls from having the same prompt by accident.
        prompt = [*history, *seen, 100 + number]
        calls.append(call(prompt, answer))
        history = prompt + answer
    rows = rows_of_calls(calls)
    for row in rows:
        assert len(row.token_ids) == len(row.loss_mask)
        assert row.trained == len(row.trained_at) == len(row.behavior_logprobs) == len(row.temperatures)
    assert sorted(token for row in rows for token in learnt(row)) == sorted(
        t for c in calls for t in c.output_token_ids
    )
    whole = [(row.token_ids.tolist(), row.loss_mask) for row in rows]
    for one in calls:
        begin, end = len(one.prompt_token_ids), len(one.prompt_token_ids) + len(one.output_token_ids)
        sequence = [*one.prompt_token_ids, *one.output_token_ids]
        assert any(ids[:end] == sequence and all(mask[begin:end]) for ids, mask in whole)


def test_rows_that_share_a_history_keep_it_once() -> None:
    history = list(range(3, 203))
    one, other = rows_of_calls([call(history, [1]), call([*history, 2], [5])])
    assert other.token_ids.tolist() == [*history, 2, 5]
    assert np.shares_memory(one.parts[0], other.parts[0])
    assert np.shares_memory(one.token_ids, one.parts[0])


@pytest.mark.parametrize("wrong", [0.5, math.nan, math.inf, -math.inf])
def test_an_answer_whose_log_probability_is_none_does_not_learn(wrong: float) -> None:
    counts = MergeCounts()
    (row,) = rows_of_calls([logged_call([1], [2, 3], [-0.1, wrong]), call([1, 2, 3, 4], [5])], counts)
    assert learnt(row) == [5]
    assert counts.untrainable == {"impossible_logprobs": 1}


def test_what_an_engine_rounds_to_just_above_zero_learns() -> None:
    (row,) = rows_of_calls([logged_call([1], [2], [1e-6])])
    assert row.trained == 1


def test_tokens_that_the_model_does_not_know_leave_their_row_out() -> None:
    counts = MergeCounts()
    rows = rows_of_calls([call([1], [2]), call([7, 12], [3])], counts, vocabulary=12)
    assert [learnt(row) for row in rows] == [[2]]
    assert counts.untrainable == {"outside_vocabulary": 1}


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_trajectory_without_a_finite_reward_is_left_out_and_counted(reward: float) -> None:
    logged = [trajectory_row(0, reward=reward, calls=[call([1], [2])]), trajectory_row(1, calls=[call([1], [2])])]
    data = policy_data(logged, None, mirrored=False)
    assert ([one.trajectory_id for one in data.scored], data.counts.unrewarded) == (["t1"], 1)
    assert [row.trajectory_id for row in data.rows] == ["t1"]


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([call([1], [99])], r"outside_vocabulary \(1\)"),
        ([logged_call([1], [2], [5.0])], r"impossible_logprobs \(1\)"),
    ],
)
def test_data_in_which_nothing_can_learn_is_refused_with_the_reason(calls: list[Call], reason: str) -> None:
    with pytest.raises(DataUnusable, match=reason):
        policy_data([trajectory_row(calls=calls)], None, mirrored=False, vocabulary=50)


def stored(*answers: tuple[int, int], ids: Sequence[int] = range(1, 9), temperature: float = 1.0) -> TrajectoryRow:
    """A row of one sequence, as a snapshot holds it; `answers`: begin and size of each."""
    spans = [
        CallSpan(
            turn_id=str(n), sequence=0, begin=begin, size=size, scored=True, trainable=True, temperature=temperature
        )
        for n, (begin, size) in enumerate(answers)
    ]
    return trajectory_row(
        token_ids=list(ids),
        sequences=[TokenSequence(size=len(ids))],
        logprobs=[-0.5] * sum(size for _, size in answers),
        spans=spans,
    )


def test_a_stored_row_teaches_its_answers() -> None:
    (row,) = rows_of(stored((2, 2), (4, 3)))
    assert row.trained_at.tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("spans", [[(0, 2)], [(2, 3), (4, 2)], [(4, 2), (2, 1)]], ids=["first", "overlap", "order"])
def test_answers_that_overlap_or_follow_nothing_are_a_contradiction(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(Rejected, match="trajectory t0 contradicts itself: answers"):
        rows_of(stored(*spans))


def test_a_negative_token_is_none_of_the_models() -> None:
    counts = MergeCounts()
    assert rows_of(stored((2, 2), ids=[1, -3, 5, 6]), counts) == []
    assert counts.untrainable == {"outside_vocabulary": 1}


@pytest.mark.parametrize("temperature", [1e-30, 0.001, math.inf, math.nan])
def test_an_answer_that_was_not_drawn_at_its_temperature_does_not_learn(temperature: float) -> None:
    assert rows_of(stored((2, 2), temperature=temperature)) == []


def test_a_baseline_that_is_no_number_is_none() -> None:
    data = policy_data([trajectory_row(calls=[call([1, 2], [3])], baseline=math.nan)], None, mirrored=False)
    assert data.scored[0].baseline is None
