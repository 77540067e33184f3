"""Log-probabilities of a prompt's own tokens: those of the model, whatever else the engine computes beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ratchet.core.errors import BadRequest
from ratchet.local.engine_local.domain.answers import Completion
from ratchet.local.engine_local.domain.requests import Sampling, read_chat, read_completion
from ratchet.local.engine_local.torch_batch import CHUNK, Batch, Job, Update
from ratchet.local.engine_local.torch_llama import LlamaNetwork
from ratchet.local.engine_local.torch_policies import Served, Weights
from ratchet.local.engine_local.torch_slots import Network, TransformersNetwork
from ratchet.local.engine_local.torch_worker import report
from tests.unit.local.engine_local.test_engine_api import NAME, Api, api, worker

__all__ = ["api", "worker"]

PROMPT = [(7 * place) % 260 + 10 for place in range(2 * CHUNK + 9)]
"""Longer than what is scored at once, and no multiple of it."""


@torch.inference_mode()
def completions(network: Network, *prompts: tuple[list[int], int | None]) -> list[Completion]:
    ended: dict[int, Completion] = {}

    def taken(index: int, update: Update) -> None:
        assert isinstance(update.end, Completion), update.end
        ended[index] = update.end

    batch = Batch(network, frozenset(), prefix_tokens=2000, seed=1)
    for round_ in range(2):  # the second time the prompts are known
        jobs = [
            Job(
                ids,
                Sampling(temperature=0),
                3,
                lambda update, index=10 * round_ + index: taken(index, update),
                prompt_logprobs=count,
            )
            for index, (ids, count) in enumerate(prompts)
        ]
        report(batch.join(jobs))
        while len(batch):
            report(batch.step())
    return [ended[index] for index in sorted(ended)]


@torch.inference_mode()
def expected(weights: Weights, prompt: list[int]) -> torch.Tensor:
    return weights.model(input_ids=torch.tensor([prompt])).logits[0, :-1].float().log_softmax(-1)


@pytest.mark.parametrize("variant", ["fused", "transformers"])
def test_each_token_has_the_models_value_rank_and_candidates(weights: Weights, variant: str) -> None:
    network = LlamaNetwork(weights.model) if variant == "fused" else TransformersNetwork(weights.model)
    truth_TV = expected(weights, PROMPT)  # noqa: N806 - shape
    for done in completions(network, (PROMPT, 3)):
        assert done.scored is not None
        assert [one.token for one in done.scored] == PROMPT[1:]
        for place, one in enumerate(done.scored):
            logp_V = truth_TV[place]  # noqa: N806 - shape
            assert one.logprob == pytest.approx(float(logp_V[one.token]), abs=1e-4)
            assert [logprob for _, logprob in one.top] == pytest.approx(logp_V.topk(3).values.tolist(), abs=1e-4)
            assert one.logprob == pytest.approx(float(logp_V.sort(descending=True).values[one.rank - 1]), abs=1e-4)


def test_scoring_changes_neither_its_own_answer_nor_those_beside_it(weights: Weights) -> None:
    network = LlamaNetwork(weights.model)
    others = [PROMPT[:5], PROMPT[3:40], PROMPT[-1:]]
    plain = completions(network, *((ids, None) for ids in (*others, PROMPT)))
    scored = completions(network, (others[0], None), (others[1], 2), (others[2], 0), (PROMPT, 1))
    for one, other in zip(plain, scored, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert [len(one.scored or ()) for one in scored] == [0, 36, 0, len(PROMPT) - 1] * 2


async def completed(api: Api, **members: Any) -> dict[str, Any]:
    body = {"model": NAME, "prompt": [20, 21, 22, 23], "max_tokens": 1, **members}
    answer = await api.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_answer_has_vllms_form(api: Api, served: Served) -> None:
    first, second = (await completed(api, prompt_logprobs=2, n=2))["choices"]
    assert first["prompt_logprobs"] == second["prompt_logprobs"]
    nothing, *tokens = first["prompt_logprobs"]
    assert nothing is None
    for token, one in zip([21, 22, 23], tokens, strict=True):
        assert 2 <= len(one) <= 3
        assert one[str(token)]["decoded_token"] == served.text.spell(token)
        assert {value["rank"] for value in one.values()} >= {1, 2}
        assert all(value["logprob"] <= 0 for value in one.values())


async def test_without_candidates_each_token_has_its_own_value_alone(api: Api) -> None:
    (choice,) = (await completed(api, prompt_logprobs=0))["choices"]
    assert [None if one is None else list(one) for one in choice["prompt_logprobs"]] == [None, ["21"], ["22"], ["23"]]
    (plain,) = (await completed(api))["choices"]
    assert "prompt_logprobs" not in plain


async def test_the_temperature_of_the_answer_does_not_touch_the_prompt(api: Api) -> None:
    cold, hot = [await completed(api, prompt_logprobs=1, temperature=t) for t in (0.5, 2.0)]
    assert cold["choices"][0]["prompt_logprobs"] == hot["choices"][0]["prompt_logprobs"]


async def test_candidates_may_be_named_by_their_ids(api: Api) -> None:
    (choice,) = (await completed(api, logprobs=3, return_tokens_as_token_ids=True, return_token_ids=True))["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{choice['token_ids'][0]}"]
    (top,) = choice["logprobs"]["top_logprobs"]
    assert len(top) == 3
    assert all(name.startswith("token_id:") for name in top)
    chat = (await api.chat(max_tokens=1, logprobs=True, return_tokens_as_token_ids=True)).json()
    assert chat["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:")


@pytest.mark.parametrize("value", [-1, 21, "2", True, 1.5])
def test_wrong_counts_are_refused(value: object) -> None:
    with pytest.raises(BadRequest, match="prompt_logprobs must be a whole number from 0 to 20"):
        read_completion({"model": NAME, "prompt": [1], "prompt_logprobs": value})


def test_a_stream_and_a_chat_have_none() -> None:
    with pytest.raises(BadRequest, match="prompt_logprobs are not available when stream is true"):
        read_completion({"model": NAME, "prompt": [1], "prompt_logprobs": 1, "stream": True})
    streamed = read_completion({"model": NAME, "prompt": [1], "prompt_logprobs": 0, "stream": True})
    assert streamed.options.prompt_logprobs is None
    with pytest.raises(BadRequest, match="prompt_logprobs is supported by /v1/completions alone"):
        read_chat({"model": NAME, "messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 1})
