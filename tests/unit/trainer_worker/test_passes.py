"""Passes hold what fits into memory, cost little, and change nothing of what is learnt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from weakref import ref

import pytest
import torch
from hypothesis import given, strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.core.contract.training import Hyperparameters
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.learner.backbone import Backbone
from ratchet.trainer_worker.training.learner.logprobs import CPU_ACTIVATIONS, MOST_PASS_TOKENS, Scorer
from ratchet.trainer_worker.training.learner.passes import Item, common, item_of, plan_passes, run_once
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.policy import TrainedPolicy
from tests.support.trainer_runs import RecordingRun, job_spec, play, toy_model


def row(beginning: Sequence[int], tail: int, name: str = "t") -> Row:
    """`beginning` and two more tokens of the prompt, then `tail` tokens that learn."""
    return Row.of(name, [*beginning, 1, 2, *[3] * tail], [False] * (len(beginning) + 2) + [True] * tail)


def tokens_of(items: Sequence[Item], part: Sequence[int], overhead: int, *, share: bool) -> int:
    """What a pass computes, counted anew."""
    chosen = [items[index] for index in part]
    rows, width = sum(item.rows for item in chosen), max(item.width for item in chosen)
    shared = min(common(chosen[0].beginning, item.beginning) for item in chosen) if share else 0
    once = run_once(shared, rows, overhead)
    return once + rows * (width - once)


beginnings = st.sampled_from([[], [4] * 20, [4] * 20 + [5] * 30, [6] * 40])
drawn_rows = st.builds(row, beginnings, st.integers(1, 60))


@given(
    st.lists(st.lists(drawn_rows, min_size=1, max_size=3), min_size=1, max_size=24), st.integers(1, 900), st.booleans()
)
def test_every_item_is_in_one_pass_and_no_pass_of_several_exceeds_budget(
    drawn: list[list[Row]], budget: int, share: bool
) -> None:
    items = [item_of(rows) for rows in drawn]
    passes = plan_passes(items, budget=budget, overhead=50, share=share)
    assert sorted(index for part in passes for index in part) == list(range(len(items)))
    for part in passes:
        assert len(part) == 1 or tokens_of(items, part, 50, share=share) <= budget


def test_rows_of_like_length_go_together_where_that_saves_more_than_a_pass() -> None:
    items = [item_of([row([], tail)]) for tail in (500, 10, 490, 12)]
    assert sorted(map(sorted, plan_passes(items, budget=10_000, overhead=150, share=True))) == [[0, 2], [1, 3]]
    near = [item_of([row([], tail)]) for tail in (10, 11, 10, 12)]
    assert len(plan_passes(near, budget=10_000, overhead=150, share=True)) == 1


def test_tries_at_one_task_go_together_and_run_its_beginning_once() -> None:
    """Tasks differ behind a system prompt; the lengths of their tries would mix them."""
    system = [9] * 20
    tasks = [[row([*system, *[10 + task] * 200], 20 + 7 * n + task) for n in range(4)] for task in range(3)]
    items = [item_of([one]) for n in range(4) for one in (task[n] for task in tasks)]
    passes = plan_passes(items, budget=10_000, overhead=150, share=True)
    assert sorted(sorted(index % 3 for index in part) for part in passes) == [[0] * 4, [1] * 4, [2] * 4]
    costs = [sum(tokens_of(items, part, 150, share=share) for part in passes) for share in (True, False)]
    assert costs[0] < 0.5 * costs[1]


def test_a_row_longer_than_the_budget_is_a_pass_of_its_own() -> None:
    items = [item_of([row([], tail)]) for tail in (5, 400, 5)]
    assert [1] in plan_passes(items, budget=50, overhead=0, share=True)
    assert plan_passes([], budget=50, overhead=0, share=True) == []


def test_rows_of_item_stay_together_and_share_what_all_of_them_begin_with() -> None:
    both = item_of([row([4] * 30, 5), row([4] * 25 + [5] * 10, 8)])
    assert (len(both.beginning), both.width, both.rows) == (25, 45, 2)


@pytest.mark.parametrize("algorithm", ["rloo", "ppo"])
def test_many_small_passes_learn_the_same_as_one(algorithm: str, tmp_path: Path) -> None:
    """Also a budget below a single row: then every row is a pass, and its layers are recomputed."""
    logged = play(toy_model(0), 8, 4, torch.Generator().manual_seed(0))
    trained: list[list[torch.Tensor]] = []
    steps: list[Any] = []
    for number, pass_tokens in enumerate((None, 40, 1)):
        policy = TrainedPolicy(toy_model(0), cast("Any", None), "model", bf16=False, fresh=True)
        hyper = Hyperparameters(
            learning_rate=1e-3, batch_size=16, max_steps=2, full_finetune=True, pass_tokens=pass_tokens
        )
        run = RecordingRun(tmp_path / str(number), algorithm)
        load_train(algorithm)(job_spec(algorithm, hyper=hyper), policy, logged, run)
        trained.append([p.detach().clone() for p in policy.model.parameters()])
        steps.append(run.steps[-1].metrics)
    for other in trained[1:]:
        for one, two in zip(trained[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
    for metrics in steps[1:]:
        assert metrics == pytest.approx(steps[0], rel=1e-3, abs=1e-5)


def wide_model(layers: int) -> Any:
    """Its tokens take so much memory that fewer fit into a pass than the cap allows."""
    common: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
    sizes = {"vocab_size": 12, "hidden_size": 256, "intermediate_size": 512}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=layers, **common))


def test_what_a_token_takes_is_measured_and_bounds_a_pass() -> None:
    """A model of twice the layers takes about twice the memory; frozen weights take less."""
    shallow, deep, frozen = wide_model(4), wide_model(8), wide_model(8)
    for name, weight in frozen.named_parameters():
        weight.requires_grad_(requires_grad="norm" in name)
    taken = [Backbone(model, lora_dropout=False).token_bytes() for model in (shallow, deep, frozen)]
    assert taken[1] == pytest.approx(2 * taken[0], rel=0.1)
    assert taken[2] < 0.9 * taken[1]
    for model, token_bytes in zip((shallow, deep, frozen), taken, strict=True):
        assert Scorer(model).pass_tokens == int(CPU_ACTIVATIONS / token_bytes) < MOST_PASS_TOKENS
    assert Scorer(toy_model(0)).pass_tokens == MOST_PASS_TOKENS


def test_a_model_is_freed_after_it_was_measured() -> None:
    model = wide_model(1)
    Backbone(model, lora_dropout=False).token_bytes()
    weight = ref(model.get_input_embeddings().weight)
    del model  # no cycle holds it: the garbage collector, whose moments differ from run to run, has no part in this
    assert weight() is None


def test_a_pass_beyond_its_tokens_recomputes_more_the_larger_it_is() -> None:
    scorer = Scorer(toy_model(0), pass_tokens=77)
    assert scorer.pass_tokens == 77
    assert scorer.recomputed(scorer.pass_tokens) == 0.0
    assert 0 < scorer.recomputed(scorer.pass_tokens + 10) < scorer.recomputed(scorer.pass_tokens * 3)
