"""Scores of trained tokens do not depend on how they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.logprobs import Scorer, check_head, verify_head
from ratchet.trainer_worker.training.learner.rows import Row
from tests.support.real_model import real_model
from tests.support.trainer_runs import toy_model

SENTENCE = "Miners took caged birds underground: when the canary fell silent, they left. "
PREFIX = [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 4, 5, 6, 7, 8, 9, 10]


def rows() -> list[Row]:
    """Rows of different lengths with a long common prefix and two trained stretches."""
    made: list[Row] = []
    for n in range(4):
        tail = [3 + n, 4, 5, 6, 7][: 2 + n]
        ids = [*PREFIX, *tail, 2, 5 + n]
        mask = [False] * len(PREFIX) + [True] * len(tail) + [False, True]
        made.append(Row.of(f"t{n}", ids, mask, temperatures=1.0 + 0.3 * n))
    return made


def plain(model: Any, row: Row) -> list[float]:
    """The definition: log-softmax of the model's logits divided by the temperature."""
    logits = model(input_ids=torch.tensor([row.token_ids.tolist()])).logits[0, :-1] / float(row.temperatures[0])
    own = torch.log_softmax(logits, -1)
    return [own[n - 1, token].item() for n, token in enumerate(row.token_ids) if row.loss_mask[n]]


def many() -> list[Row]:
    """As many as make running their beginning once worth it."""
    return rows() * 4


def scored(
    scorer: Scorer, gradient_of: Any, of: Sequence[Row] | None = None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    scores = scorer.score(of or rows())
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
    assert Scorer(model).shared_prefix(many()) == len(PREFIX) - 1
    together, shared_gradients = scored(Scorer(model), model, many())
    apart, own_gradients = scored(Scorer(model, share_prefix=False), model, many())
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    for one, other in zip(shared_gradients, own_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_short_prefix_a_single_row_or_few_rows_are_not_shared() -> None:
    scorer = Scorer(toy_model(0))
    assert scorer.shared_prefix(rows()[:1]) == 0
    assert scorer.shared_prefix(rows()[:2]) == 0  # saves 17 tokens and costs a pass
    assert scorer.shared_prefix([Row.of("a", [1, 2], [False, True]), Row.of("b", [1, 3], [False, True])]) == 0


@pytest.mark.parametrize("share", [True, False])
def test_layers_that_are_recomputed_change_neither_scores_nor_gradients(share: bool) -> None:
    """A pass of more tokens than fit recomputes layers, also behind a beginning that is run once."""
    model = toy_model(0)
    whole, gradients = scored(Scorer(model, share_prefix=share), model, many())
    scorer = Scorer(model, share_prefix=share, pass_tokens=10)
    assert scorer.recomputed(len(PREFIX) * 10) == 1.0
    parts, part_gradients = scored(scorer, model, many())
    torch.testing.assert_close(whole, parts, atol=0, rtol=0)
    for one, other in zip(gradients, part_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


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
    assert verify_head(Scorer(model), rows()[0], [1])[0].max() < 1e-5
    check_head(Scorer(model), rows())
    model.config.logit_scale = 0.5
    with pytest.raises(DataUnusable, match="changes its logits in a way the learner does not know"):
        check_head(Scorer(model), rows())


def test_check_head_judges_a_short_row_together_with_longer_ones() -> None:
    """The mean of few tokens is beyond the limit by rounding alone, as the hook makes it for the shortest row."""
    model, given = toy_model(0), rows()

    def rounded(_: Any, _arguments: Any, named: dict[str, Any], output: Any) -> None:
        if named["input_ids"].shape[1] == given[0].length:
            output.logits *= 1.3

    model.register_forward_hook(rounded, with_kwargs=True)
    with torch.no_grad():
        check_head(Scorer(model, bf16=True), given)
        with pytest.raises(DataUnusable, match="changes its logits"):
            check_head(Scorer(model, bf16=True), given[:1])


def test_the_model_itself_runs_once_for_copies_of_a_row() -> None:
    model, passes = toy_model(0), list[int]()
    model.register_forward_hook(lambda *_: passes.append(1))
    apart = verify_head(Scorer(model), rows()[0], [1, 8])
    assert [len(part) for part in apart] == [rows()[0].trained, 8 * rows()[0].trained]
    assert len(passes) == 1


def test_a_model_that_looks_at_earlier_tokens_in_its_own_way_is_noticed() -> None:
    """It declares no window, so its beginnings would be run once; the layers have one all the same."""
    model = toy_model(0)
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(only_near_tokens, with_kwargs=True)
    with pytest.raises(DataUnusable, match="looks at earlier tokens in a way the learner does not know"):
        check_head(Scorer(model), rows())


def only_near_tokens(_: Any, arguments: Any, named: dict[str, Any]) -> Any:
    """A window that is only kept where there is no cache, as a hybrid model's state is lost."""
    tokens = named["hidden_states"].shape[1]
    if named.get("past_key_values") is None:
        near = torch.ones(tokens, tokens, dtype=torch.bool).tril().triu(-3)
        named["attention_mask"] = near[None, None]
    return arguments, named


def test_no_base_drops_anything_out_and_an_adapter_only_where_it_learns() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=12, n_positions=40, n_embd=16, n_layer=2, n_head=2))
    assert model.config.resid_pdrop > 0
    model.train()
    assert torch.equal(Scorer(model).score(rows()).logprobs_N, Scorer(model.eval()).score(rows()).logprobs_N)
    config = LoraConfig(r=2, lora_dropout=0.5, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    adapted = get_peft_model(model, config)
    learning = Scorer(adapted).score(rows()).logprobs_N
    assert not torch.equal(learning, Scorer(adapted).score(rows()).logprobs_N)
    quiet = Scorer(adapted, lora_dropout=False).score(rows()).logprobs_N
    with torch.no_grad():
        assert torch.equal(quiet, Scorer(adapted).score(rows()).logprobs_N)


def check_rounding_and_cap(model: Any, row: Row, cap: float) -> None:
    """Its rounding is no strange model; with a capped head it is one."""
    with torch.no_grad():
        check_head(Scorer(model, bf16=True), [row])
        model.config.final_logit_softcapping = cap
        with pytest.raises(DataUnusable, match="changes its logits"):
            check_head(Scorer(model, bf16=True), [row])


@pytest.mark.slow
def test_check_head_tells_rounding_of_a_trained_model_from_a_capped_head() -> None:
    token_ids = AutoTokenizer.from_pretrained(real_model())(SENTENCE * 4)["input_ids"]
    row = Row.of("try", token_ids, [0] * (len(token_ids) - 10) + [1] * 10)
    check_rounding_and_cap(AutoModelForCausalLM.from_pretrained(real_model(), dtype=torch.bfloat16), row, 30.0)


def test_check_head_tells_rounding_of_thirty_layers_from_a_capped_head() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=30,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    row = Row.of("try", list(range(20, 60)), [0] * 10 + [1] * 30)
    check_rounding_and_cap(LlamaForCausalLM(config).to(torch.bfloat16), row, 1.0)
