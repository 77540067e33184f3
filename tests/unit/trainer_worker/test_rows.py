"""Calls become rows: what extends is merged, what drifts forks, what no later call continues is dropped."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from ratchet.contract.snapshot import Call
from ratchet.trainer_worker.training.learner.rows import MergeCounts, Row, rows_of, without_orphans
from tests.support.snapshot_rows import call as logged_call


def call(prompt: list[int], output: list[int], **changes: object) -> Call:
    return logged_call(prompt, output, [-0.5 - 0.01 * n for n in range(len(output))], **changes)


def learnt(row: Row) -> list[int]:
    return [token for token, learns in zip(row.token_ids, row.loss_mask, strict=True) if learns]


def test_a_conversation_that_only_grows_is_one_row() -> None:
    rows = rows_of("t", [call([1, 2], [3, 4]), call([1, 2, 3, 4, 9, 9], [5])])
    assert [row.token_ids for row in rows] == [[1, 2, 3, 4, 9, 9, 5]]
    assert rows[0].loss_mask == [False, False, True, True, False, False, True]
    assert rows[0].behavior_logprobs == [0, 0, -0.5, -0.51, 0, 0, -0.5]


def test_a_history_that_was_rendered_again_starts_a_row_of_its_own() -> None:
    counts = MergeCounts()
    rows = rows_of("t", [call([1, 2], [3, 4]), call([1, 2, 3, 7], [5])], counts)
    assert [learnt(row) for row in rows] == [[3, 4], [5]]
    assert rows[1].token_ids == [1, 2, 3, 7, 5]
    assert counts.forks == 1


def test_interleaved_conversations_each_stay_one_row() -> None:
    main, sub = call([1], [2]), call([8], [9])
    rows = rows_of("t", [main, sub, call([1, 2, 3], [4]), call([8, 9, 7], [6])])
    assert [learnt(row) for row in rows] == [[2, 4], [9, 6]]


def test_the_retry_whose_answer_was_read_is_kept() -> None:
    thrown_away, used = call([1], [2]), call([1], [3])
    later = call([1, 3, 5], [6])
    assert without_orphans([used, thrown_away, later]) == [used, later]
    assert without_orphans([thrown_away, used]) == [used]


def test_an_untrainable_call_is_context_and_does_not_learn() -> None:
    counts = MergeCounts()
    rows = rows_of("t", [call([1], [2], trainable=False, reason="top_p"), call([1, 2, 3], [4])], counts)
    assert [learnt(row) for row in rows] == [[4]]
    assert rows[0].token_ids == [1, 2, 3, 4]
    assert counts.untrainable == {"top_p": 1}


def test_greedy_calls_and_calls_without_logprobs_do_not_learn() -> None:
    assert rows_of("t", [call([1], [2], temperature=0.0)]) == []
    assert rows_of("t", [logged_call([1], [2, 3], [-0.1])]) == []


def test_every_token_keeps_the_temperature_it_was_drawn_at() -> None:
    (row,) = rows_of("t", [call([1], [2], temperature=0.7), call([1, 2, 3], [4], temperature=1.3)])
    assert row.temperatures == [1.0, 0.7, 1.0, 1.3]


def test_a_row_that_is_too_long_loses_its_end() -> None:
    counts = MergeCounts()
    rows = rows_of("t", [call([1, 2], [3, 4, 5])], counts, max_length=4)
    assert [learnt(row) for row in rows] == [[3, 4]]
    assert counts.truncated == 1
    assert rows_of("t", [call([1, 2], [3])], max_length=2) == []


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
    rows = rows_of("t", calls)
    for row in rows:
        assert len(row.token_ids) == len(row.loss_mask) == len(row.behavior_logprobs) == len(row.temperatures)
    assert sorted(token for row in rows for token in learnt(row)) == sorted(
        t for c in calls for t in c.output_token_ids
    )
    whole = [(row.token_ids, row.loss_mask) for row in rows]
    for one in calls:
        begin, end = len(one.prompt_token_ids), len(one.prompt_token_ids) + len(one.output_token_ids)
        sequence = [*one.prompt_token_ids, *one.output_token_ids]
        assert any(ids[:end] == sequence and all(mask[begin:end]) for ids, mask in whole)
