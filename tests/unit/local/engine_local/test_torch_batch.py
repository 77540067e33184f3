"""The running batch gives every sequence what it would get alone."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ratchet.core.errors import RatchetError
from ratchet.local.engine_local.domain.answers import Completion, Drawn
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.torch_batch import Batch, Job, Update
from ratchet.local.engine_local.torch_llama import LlamaNetwork, lean_network
from ratchet.local.engine_local.torch_policies import Served, Weights
from ratchet.local.engine_local.torch_sampling import draw, drawer
from ratchet.local.engine_local.torch_slots import Network, SlotLayer, TransformersNetwork
from ratchet.local.engine_local.torch_worker import report

NO_END: frozenset[int] = frozenset()


class Asked:
    """A job and what became of it."""

    def __init__(self, prompt: Sequence[int], limit: int = 12, **members: Any) -> None:
        self.result: Completion | None = None
        self.error: Exception | None = None
        more = {name: members.pop(name) for name in ("top_logprobs", "stops_in") if name in members}
        self.job = Job(prompt, Sampling(**members), limit, self._report, **more)

    @property
    def completion(self) -> Completion:
        assert self.result is not None
        return self.result

    def _report(self, update: Update) -> None:
        if isinstance(update.end, Completion):
            self.result = update.end
        else:
            self.error = update.end


@torch.inference_mode()
def finish(batch: Batch, *updates: Update) -> None:
    report(updates)
    while len(batch):
        report(batch.step())


@torch.inference_mode()
def answered(network: Network, *asked: Asked, end: frozenset[int] = NO_END, prefix_tokens: int = 0) -> Batch:
    batch = Batch(network, end, prefix_tokens, seed=1)
    finish(batch, *batch.join([one.job for one in asked]))
    return batch


@torch.inference_mode()
def expected_logprobs(
    weights: Weights, prompt: Sequence[int], output: Sequence[int], temperature: float
) -> list[float]:
    ids = torch.tensor([[*prompt, *output]])
    logits = weights.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist()


def worst(actual: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(actual, expected, strict=True))


def prompts(count: int) -> list[list[int]]:
    return [[(7 * row + 3 * place) % 260 + 10 for place in range(3 + 9 * row)] for row in range(count)]


@pytest.mark.parametrize("variant", ["fused", "transformers"])
def test_batched_logprobs_are_those_of_the_model_alone(weights: Weights, variant: str) -> None:
    network = lean_network(weights.model) if variant == "fused" else TransformersNetwork(weights.model)
    temperatures = [0.3, 0.7, 1.0, 1.3, 2.0]
    asked = [
        Asked(ids, limit=4 + 5 * n, temperature=t)
        for n, (ids, t) in enumerate(zip(prompts(5), temperatures, strict=True))
    ]
    answered(network, *asked)
    for one, temperature in zip(asked, temperatures, strict=True):
        done = one.completion
        assert len(done.token_ids) == one.job.limit
        assert worst(done.logprobs, expected_logprobs(weights, one.job.prompt, done.token_ids, temperature)) < 1e-4


def test_a_llama_is_served_by_the_fused_network(weights: Weights) -> None:
    assert isinstance(lean_network(weights.model), LlamaNetwork)


@torch.inference_mode()
def test_rows_that_join_late_and_leave_early_disturb_nobody(weights: Weights, served: Served) -> None:
    batch = Batch(served.network, NO_END, 0, seed=2)
    asked = [Asked(ids, limit=3 + 4 * (n % 3)) for n, ids in enumerate(prompts(6))]
    for one in asked:
        report(batch.join([one.job]))
        report(batch.step())
    finish(batch)
    for one in asked:
        done = one.completion
        assert worst(done.logprobs, expected_logprobs(weights, one.job.prompt, done.token_ids, 1.0)) < 1e-4


@torch.inference_mode()
def test_a_reused_prefix_changes_no_logprob(weights: Weights, served: Served) -> None:
    batch = Batch(served.network, NO_END, 4000, seed=3)
    first = Asked(prompts(6)[5])
    finish(batch, *batch.join([first.job]))
    continued = Asked([*first.job.prompt, *first.completion.token_ids, 20, 21, 22])
    branched = Asked([*first.job.prompt[:30], 99, 98])
    finish(batch, *batch.join([continued.job, branched.job]))
    assert continued.completion.cached_tokens == len(first.job.prompt) + len(first.completion.token_ids) - 1
    assert branched.completion.cached_tokens == 30
    for one in (continued, branched):
        done = one.completion
        assert worst(done.logprobs, expected_logprobs(weights, one.job.prompt, done.token_ids, 1.0)) < 1e-4


@torch.inference_mode()
def test_a_prompt_that_is_repeated_is_computed_once(weights: Weights, served: Served) -> None:
    batch = Batch(served.network, NO_END, 0, seed=3)
    earlier, other = Asked(prompts(3)[2], limit=20), Asked(prompts(4)[3])
    tries = [Asked(prompts(6)[5], limit=4 + number) for number in range(3)]
    report(batch.join([earlier.job]))
    together = [tries[0].job, other.job, tries[1].job, tries[2].job]

    assert batch.new_tokens(together) == [48, 30, 0, 0]
    finish(batch, *batch.join(together))

    assert [one.completion.cached_tokens for one in tries] == [0, 48, 48]
    assert len({tuple(one.completion.token_ids[:4]) for one in tries}) > 1
    for one in (earlier, other, *tries):
        done = one.completion
        assert worst(done.logprobs, expected_logprobs(weights, one.job.prompt, done.token_ids, 1.0)) < 1e-4


def test_temperature_zero_takes_the_most_likely_token(weights: Weights, served: Served) -> None:
    asked = Asked(prompts(3)[2], temperature=0.0)
    answered(served.network, asked)
    done = asked.completion
    ids = torch.tensor([[*asked.job.prompt, *done.token_ids]])
    with torch.inference_mode():
        likeliest = weights.model(input_ids=ids).logits[0, len(asked.job.prompt) - 1 : -1].argmax(-1).tolist()
    assert list(done.token_ids) == likeliest
    assert worst(done.logprobs, expected_logprobs(weights, asked.job.prompt, done.token_ids, 1.0)) < 1e-4


def test_a_seed_gives_the_same_tokens_in_any_batch(served: Served) -> None:
    alone, accompanied = Asked(prompts(2)[1], seed=7), Asked(prompts(2)[1], seed=7)
    answered(served.network, alone)
    answered(served.network, Asked(prompts(4)[3]), accompanied, Asked(prompts(3)[2], seed=8))
    assert accompanied.completion.token_ids == alone.completion.token_ids


def test_an_end_token_ends_the_answer_and_is_part_of_it(served: Served) -> None:
    probe = Asked(prompts(1)[0], seed=5, limit=6)
    answered(served.network, probe)
    end = probe.completion.token_ids[3]
    asked = Asked(prompts(1)[0], seed=5, limit=6)
    answered(served.network, asked, end=frozenset({end}))
    assert asked.completion.token_ids[-1] == end
    assert len(asked.completion.token_ids) <= 4
    assert (asked.completion.finish_reason, probe.completion.finish_reason) == ("stop", "length")


def test_a_stop_text_ends_the_answer(served: Served) -> None:
    asked = Asked(prompts(1)[0], limit=10, stops_in=lambda ids: len(ids) == 2)
    answered(served.network, asked)
    assert (len(asked.completion.token_ids), asked.completion.finish_reason) == (2, "stop")


@torch.inference_mode()
def test_a_cancelled_row_leaves_without_an_answer(served: Served) -> None:
    batch = Batch(served.network, NO_END, 0, seed=1)
    gone, stays = Asked(prompts(2)[0], limit=50), Asked(prompts(2)[1], limit=3)
    updates = batch.join([gone.job, stays.job])
    gone.job.cancelled = True
    finish(batch, *updates)
    assert (gone.result, gone.error) == (None, None)
    assert len(stays.completion.token_ids) == 3


def test_a_policy_that_gives_nan_fails_its_request(served: Served) -> None:
    class Broken:
        depth, dtype = served.network.depth, served.network.dtype

        def __call__(self, *inputs: Any) -> torch.Tensor:
            return served.network(*inputs) * math.nan

    asked = Asked(prompts(1)[0])
    answered(Broken(), asked)
    assert isinstance(asked.error, RatchetError)
    assert asked.error.code == "not_finite"


def test_the_likeliest_tokens_are_reported_on_request(served: Served) -> None:
    asked = Asked(prompts(1)[0], limit=2, top_logprobs=3)
    answered(served.network, asked)
    assert [len(top) for top in asked.completion.top] == [3, 3]
    assert all(top == sorted(top, key=lambda one: -one[1]) for top in map(list, asked.completion.top))


def test_tokens_are_drawn_from_the_bounded_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0]).log_softmax(-1)
    p = logits.exp()
    rows = [Sampling(), Sampling(top_k=2), Sampling(top_p=0.8), Sampling(top_k=3, top_p=0.5)]
    allowed = [5, 2, 2, 1]
    drawn: list[Counter[int]] = [Counter() for _ in rows]
    for _ in range(2000):
        for counter, one in zip(drawn, draw(logits.repeat(4, 1), [drawer(s) for s in rows], generator), strict=True):
            counter[one.token] += 1
    for counter, count in zip(drawn, allowed, strict=True):
        share = p[:count] / p[:count].sum()
        assert sorted(counter) == list(range(count))
        assert all(abs(counter[n] / 2000 - float(share[n])) < 0.04 for n in range(count))
    bounded = draw(logits[None], [drawer(Sampling(top_k=1))], generator)[0]
    assert (bounded.token, round(bounded.logprob, 6)) == (0, 0.0)


def test_penalties_and_min_p_change_what_is_drawn_and_logged() -> None:
    logits = torch.tensor([2.0, 1.9, 0.0, -1.0])
    generator = torch.Generator().manual_seed(0)

    def drawn(sampling: Sampling, *prompt: int) -> Drawn:
        return draw(logits[None], [drawer(sampling, prompt=prompt)], generator)[0]

    assert drawn(Sampling(temperature=0)).token == 0
    assert drawn(Sampling(temperature=0, repetition_penalty=1.5), 0).token == 1
    present = drawer(Sampling(temperature=0, presence_penalty=0.5))
    assert [draw(logits[None], [present], generator)[0].token for _ in range(3)] == [0, 1, 0]
    frequent = drawer(Sampling(temperature=0, frequency_penalty=0.5))
    assert [draw(logits[None], [frequent], generator)[0].token for _ in range(4)] == [0, 1, 0, 1]
    assert {drawn(Sampling(min_p=0.5, seed=seed)).token for seed in range(60)} == {0, 1}
    sure = drawn(Sampling(min_p=0.5, seed=1))
    assert sure.logprob == pytest.approx(float(torch.tensor([2.0, 1.9]).log_softmax(-1)[sure.token]), abs=1e-6)


def test_a_layer_that_runs_out_of_memory_keeps_both_buffers_as_they_were() -> None:
    class Full(torch.Tensor):
        def new_zeros(self, *_: Any, **__: Any) -> torch.Tensor:
            raise torch.OutOfMemoryError

    layer = SlotLayer()
    layer.fill(0, torch.ones(1, 2, 1), torch.ones(1, 2, 1))
    before = layer.keys.shape
    layer.values = layer.values.as_subclass(Full)
    with pytest.raises(torch.OutOfMemoryError):
        layer.fill(before[0], torch.ones(1, 2, 1), torch.ones(1, 2, 1))
    assert layer.keys.shape == layer.values.shape == before
