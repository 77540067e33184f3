"""Generalised advantage estimation, against values computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from ratchet.trainer_worker.training.learner.advantages import gae, whitened


def test_gae_against_hand_computed_values() -> None:
    """values .2 .5 .1, reward 1, gamma .9, lambda .8: deltas .25, -.41, .9, folded from the end by .72."""
    advantages = gae([0.2, 0.5, 0.1], 1.0, 0.9, 0.8)
    last = 0.9
    middle = -0.41 + 0.72 * last
    first = 0.25 + 0.72 * middle
    assert advantages == pytest.approx([first, middle, last])
    assert advantages == pytest.approx([0.42136, 0.238, 0.9])


def test_without_discounting_every_token_is_credited_with_the_reward() -> None:
    assert gae([0.3, 0.6], 1.0, 1.0, 1.0) == pytest.approx([0.7, 0.4])


def test_lambda_zero_is_the_one_step_error() -> None:
    assert gae([0.2, 0.5, 0.1], 1.0, 1.0, 0.0) == pytest.approx([0.3, -0.4, 0.9])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.floats(-1, 1))
def test_returns_are_the_discounted_reward_when_lambda_is_one(values: list[float], reward: float) -> None:
    advantages = gae(values, reward, 0.9, 1.0)
    returns = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
    expected = [reward * 0.9 ** (len(values) - 1 - n) for n in range(len(values))]
    assert returns == pytest.approx(expected, abs=1e-9)


def test_whitening_is_over_all_tokens_of_all_rows() -> None:
    white = whitened([[1.0, 2.0], [3.0]])
    assert [value for row in white for value in row] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)
    assert whitened([[2.0]]) == [[2.0]]
