"""Rows that follow a grammar share a batch with free ones; log-probabilities are of what could be drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.core.errors import BadRequest
from ratchet.core.grammars.compiler import Tokens
from ratchet.core.grammars.walk import Grammar, allowed, open_mask
from ratchet.local.engine_local.domain.answers import Completion
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.torch_batch import Batch, Job, Update
from ratchet.local.engine_local.torch_policies import Served
from tests.support.grammars import constraint, read_tokenizer, shared_compiler, tokens_of

PROMPT = list(range(20, 50))
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "ok": {"enum": [True, False]}},
    "required": ["id", "ok"],
}
Make = Callable[..., Grammar]


@pytest.fixture(scope="module")
def tokens(tiny_directory: Path) -> Tokens:
    tokenizer = read_tokenizer(tiny_directory)
    return tokens_of(tokenizer)


@pytest.fixture(scope="module")
def grammar(tokens: Tokens) -> Make:
    return lambda **body: shared_compiler().compile(tokens, constraint(**body))


def answers(served: Served, *asked: tuple[Grammar | None, Sampling], limit: int = 40) -> list[Completion | Exception]:
    """How jobs of one batch end, in their order."""
    ends: dict[int, Completion | Exception] = {}

    def on_update(index: int, update: Update) -> None:
        if update.end is not None:
            ends[index] = update.end

    jobs = [
        Job(PROMPT, sampling, limit, partial(on_update, index), grammar=follows, top_logprobs=5)
        for index, (follows, sampling) in enumerate(asked)
    ]
    with torch.inference_mode():
        batch = Batch(served.network, served.text.end_ids, 0, seed=3)
        updates = batch.join(jobs)
        while len(batch):
            updates += batch.step()
    for update in updates:
        update.job.on_progress(update)
    return [ends[index] for index in range(len(asked))]


def completed(end: Completion | Exception) -> Completion:
    assert isinstance(end, Completion), end
    return end


def masked_logprobs(served: Served, model: Any, done: Completion, follows: Grammar, sampling: Sampling) -> list[float]:
    """The log-probabilities of the model itself over what the grammar allows, without engine or cache."""
    ids = torch.tensor([[*PROMPT, *done.token_ids]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].float() / (sampling.temperature or 1.0)
    walk, mask = follows.walk(sampling.stop_token_ids), open_mask(len(done.token_ids), follows.size)
    for row, token in enumerate(done.token_ids):
        walk.allow(mask, row)
        assert walk.accept(token)
    logprobs = logits.masked_fill(~allowed(mask, follows.size), -torch.inf).log_softmax(-1)
    return logprobs.gather(-1, ids[0, len(PROMPT) :, None])[:, 0].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0, 1.7])
def test_constrained_and_free_rows_share_a_batch(
    served: Served, weights: Any, grammar: Make, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, seed=5)
    json_object, choice = grammar(guided_json=SCHEMA), grammar(guided_choice=["sent on monday", "never"])
    asked = [(json_object, sampling), (None, sampling), (choice, sampling), (json_object, Sampling(seed=6))]
    ends = [completed(one) for one in answers(served, *asked)]
    (alone,) = answers(served, (None, sampling))
    assert ends[1].token_ids == completed(alone).token_ids
    for done, (follows, how) in zip(ends, asked, strict=True):
        if follows is not None:
            expected = masked_logprobs(served, weights.model, done, follows, how)
            assert done.logprobs == pytest.approx(expected, abs=1e-4)
    assert served.text.text(ends[2].token_ids) in {"sent on monday", "never"}
    assert ends[2].finish_reason == "stop"
    assert all(logprob > -1e9 for done in ends for top in done.top for _, logprob in top)


def test_greedy_takes_the_most_likely_of_what_is_allowed(served: Served, grammar: Make) -> None:
    follows = grammar(guided_regex="[a-c]{3}")
    (first, second) = answers(served, *[(follows, Sampling(temperature=0.0))] * 2)
    assert completed(first).token_ids == completed(second).token_ids
    assert len(served.text.text(completed(first).token_ids)) == 3
    assert all(top[0][0] == token for token, top in zip(completed(first).token_ids, completed(first).top, strict=True))


def test_penalties_and_bounds_apply_to_what_is_allowed(served: Served, grammar: Make) -> None:
    follows = grammar(guided_regex="[a-z ]{1,30}")
    sampling = Sampling(seed=1, top_k=3, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.5)
    (done,) = answers(served, (follows, sampling))
    assert set(served.text.text(completed(done).token_ids)) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_an_answer_that_reaches_its_limit_is_the_beginning_of_a_text(served: Served, grammar: Make) -> None:
    (done,) = answers(served, (grammar(guided_regex="a{30}"), Sampling(seed=1)), limit=3)
    assert completed(done).finish_reason == "length"
    assert set(served.text.text(completed(done).token_ids)) == {"a"}


def test_stop_token_of_the_request_ends_answer_only_where_grammar_may_end(
    served: Served, grammar: Make, tokens: Tokens
) -> None:
    (a,) = served.text.text_ids("a")
    (done,) = answers(served, (grammar(guided_regex="(ba){2}"), Sampling(seed=1, stop_token_ids=(3, a))))
    # `a` would be a stop token and is none within the text: the grammar has no other way to go on.
    assert isinstance(done, BadRequest)
    (done,) = answers(served, (grammar(guided_regex="b{2}"), Sampling(seed=1, stop_token_ids=(3, a))))
    assert completed(done).token_ids[-1] in {3, a, *tokens.ends}
    assert served.text.text(completed(done).token_ids, {3, a}) == "bb"


def test_a_row_without_a_way_out_fails_alone(served: Served, grammar: Make) -> None:
    dead = grammar(guided_grammar='root ::= "a" dead\ndead ::= dead "b"')
    free, failed = answers(served, (None, Sampling(seed=2)), (dead, Sampling(seed=2)))
    assert completed(free).token_ids
    assert isinstance(failed, BadRequest)
    assert failed.code == "constraint_failed"


@pytest.mark.slow
def test_row_whose_grammar_takes_too_long_fails_alone_and_marks_it(served: Served, grammar: Make) -> None:
    slow = grammar(guided_grammar='root ::= many never\nmany ::= many many | [a-z ]\nnever ::= never "b"')
    free, failed = answers(served, (None, Sampling(seed=2)), (slow, Sampling(seed=2)), limit=4000)
    assert completed(free).token_ids
    assert isinstance(failed, BadRequest)
    assert "takes more than" in str(failed)
    assert slow.costly
