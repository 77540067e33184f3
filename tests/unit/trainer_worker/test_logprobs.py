"""Scores of trained tokens do not depend on how they are computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ratchet.trainer_worker.training.learner import logprobs
from ratchet.trainer_worker.training.learner.logprobs import Scorer, length_groups, verify_head
from ratchet.trainer_worker.training.learner.rows import Row
from tests.support.trainer_runs import toy_model

PREFIX = [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 4, 5, 6, 7, 8, 9, 10]


def rows() -> list[Row]:
    """Rows of different lengths with a long common prefix and two trained stretches."""
    made: list[Row] = []
    for n in range(4):
        tail = [3 + n, 4, 5, 6, 7][: 2 + n]
        ids = [*PREFIX, *tail, 2, 5 + n]
        mask = [False] * len(PREFIX) + [True] * len(tail) + [False, True]
        made.append(Row(f"t{n}", ids, mask, [0.0] * len(ids), [1.0 + 0.3 * n] * len(ids)))
    return made


def plain(model: Any, row: Row) -> list[float]:
    """The definition: log-softmax of the model's logits divided by the temperature."""
    logits = model(input_ids=torch.tensor([row.token_ids])).logits[0, :-1] / row.temperatures[0]
    own = torch.log_softmax(logits, -1)
    return [own[n - 1, token].item() for n, token in enumerate(row.token_ids) if row.loss_mask[n]]


def scored(scorer: Scorer, gradient_of: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    scores = scorer.score(rows())
    scores.logprobs_N.sum().backward()
    gradients = [p.grad.clone() for p in gradient_of.parameters()]
    gradient_of.zero_grad()
    return scores.logprobs_N.detach(), gradients


def test_scores_are_the_log_softmax_at_each_tokens_temperature() -> None:
    model = toy_model(0)
    logprobs = Scorer(model).score(rows()).logprobs_N
    expected = [value for row in rows() for value in plain(model, row)]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_shared_prefix_changes_neither_scores_nor_gradients() -> None:
    model = toy_model(0)
    assert Scorer(model).shared_prefix(rows()) == len(PREFIX) - 1
    together, shared_gradients = scored(Scorer(model), model)
    apart, own_gradients = scored(Scorer(model, share_prefix=False), model)
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    for one, other in zip(shared_gradients, own_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_short_prefix_or_a_single_row_is_not_shared() -> None:
    scorer = Scorer(toy_model(0))
    assert scorer.shared_prefix(rows()[:1]) == 0
    assert scorer.shared_prefix([Row("a", [1, 2], [False, True]), Row("b", [1, 3], [False, True])]) == 0


def test_chunks_change_neither_scores_nor_gradients() -> None:
    model = toy_model(0)
    whole, gradients = scored(Scorer(model), model)
    scorer = Scorer(model, chunk_elements=3 * 12)
    parts, part_gradients = scored(scorer, model)
    torch.testing.assert_close(whole, parts, atol=1e-6, rtol=1e-6)
    for one, other in zip(gradients, part_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_entropy_is_that_of_the_distribution_each_token_was_drawn_from() -> None:
    scores = Scorer(toy_model(0)).score(rows())
    assert scores.entropy_N.shape == scores.logprobs_N.shape
    assert 0 < scores.entropy_N.min().item() <= scores.entropy_N.max().item() <= torch.tensor(12.0).log().item() + 1e-6


def test_a_model_that_changes_its_logits_is_noticed() -> None:
    model = toy_model(0)
    assert verify_head(Scorer(model), rows()[0]) < 1e-5
    model.config.logit_scale = 0.5
    assert verify_head(Scorer(model), rows()[0]) > 0.01


def test_rows_of_very_different_length_are_grouped_without_changing_their_scores() -> None:
    model = toy_model(0)
    short = Row("s", [1, 3, 4], [False, True, True], [0.0] * 3, [1.0] * 3)
    mixed = [row for pair in zip(rows(), [short] * 4, strict=True) for row in pair] * 8
    assert len(length_groups([len(row.token_ids) for row in mixed], 150)) > 1
    logprobs = Scorer(model).score(mixed).logprobs_N
    alone = torch.cat([Scorer(model).score([row]).logprobs_N for row in mixed])
    torch.testing.assert_close(logprobs, alone, atol=1e-5, rtol=1e-5)


def test_grouping_is_by_length_and_only_where_it_saves_more_than_a_pass() -> None:
    assert length_groups([10, 11, 10, 12], 150) == [[0, 1, 2, 3]]
    assert length_groups([500, 10, 490, 12], 150) == [[1, 3], [2, 0]]
    groups = length_groups([1000, 10, 500, 20, 250, 30, 990, 40], 0)
    assert sorted(index for group in groups for index in group) == list(range(8))


def test_the_default_chunk_holds_a_real_batch_of_a_small_vocabulary() -> None:
    assert logprobs.CHUNK_ELEMENTS // 1000 > 32 * 512
