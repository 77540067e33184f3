"""The engine computes SmolLM2 as transformers does, alone and in a batch, and as the trainer recomputes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ratchet.core.contract.policy_manifest import BFLOAT16, FLOAT32
from ratchet.core.rules.engines import tolerance_in
from ratchet.local.engine_local.domain.answers import Completion
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.torch_batch import Batch, Job, Update
from ratchet.local.engine_local.torch_llama import LlamaNetwork, lean_network
from ratchet.local.engine_local.torch_policies import Weights, load_weights
from ratchet.local.engine_local.torch_worker import report
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.rows import Row
from tests.support.real_model import real_model

pytestmark = pytest.mark.slow

QUESTIONS = ("What is the capital of France?", "Say one word.", "Name three colours of the rainbow, in order, please.")
ANSWER = 8


@pytest.fixture(scope="module", params=[FLOAT32, BFLOAT16])
def weights(request: pytest.FixtureRequest) -> Weights:
    return load_weights(real_model(), request.param)


# In 16 bits two right computations may choose differently between tokens that are nearly as likely.
in_float32 = pytest.mark.parametrize("weights", [FLOAT32], indirect=True)


@torch.inference_mode()
def answers(weights: Weights, prompts: list[list[int]], sampling: Sampling) -> list[Completion]:
    """Of a batch in which one answer after the other joins."""
    network = lean_network(weights.model)
    assert isinstance(network, LlamaNetwork)
    ended: dict[int, Completion] = {}

    def job(number: int) -> Job:
        def note(update: Update) -> None:
            assert isinstance(update.end, Completion)
            ended[number] = update.end

        return Job(prompts[number], sampling, ANSWER, note)

    batch = Batch(network, weights.text.end_ids, 1000, seed=3)
    for number in range(len(prompts)):
        report(batch.join([job(number)]))
        report(batch.step())
    while len(batch):
        report(batch.step())
    return [ended[number] for number in range(len(prompts))]


def chats(weights: Weights) -> list[list[int]]:
    return [weights.text.chat_ids([{"role": "user", "content": text}], []) for text in QUESTIONS]


@in_float32
def test_greedy_answers_of_a_batch_are_those_of_transformers_alone(weights: Weights) -> None:
    prompts = chats(weights)

    drawn = answers(weights, prompts, Sampling(temperature=0))

    for prompt, answer in zip(prompts, drawn, strict=True):
        generated: Any = weights.model.generate(torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False)
        assert answer.token_ids == generated[0, len(prompt) :].tolist()


def test_logprobs_of_drawn_tokens_are_those_that_the_trainer_recomputes(weights: Weights) -> None:
    temperature = 0.8
    prompts = chats(weights)

    drawn = answers(weights, prompts, Sampling(temperature=temperature))

    rows = [
        Row.of(
            str(number),
            [*prompt, *answer.token_ids],
            [False] * len(prompt) + [True] * len(answer.token_ids),
            answer.logprobs,
            temperature,
        )
        for number, (prompt, answer) in enumerate(zip(prompts, drawn, strict=True))
    ]
    bf16 = weights.model.dtype == torch.bfloat16
    with torch.no_grad():
        scorer = Scorer(weights.model, bf16=bf16)
        recomputed = torch.cat([scorer.score([row]).logprobs_N for row in rows])
    apart = (recomputed - torch.tensor([one for answer in drawn for one in answer.logprobs])).abs()
    tolerance = tolerance_in(BFLOAT16 if bf16 else FLOAT32)
    assert float(apart.mean()) <= tolerance.mean
    assert float(apart.max()) <= tolerance.worst
