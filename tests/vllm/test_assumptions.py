"""What Ratchet assumes of vLLM, on vLLM itself: streams, masked log-probabilities, cancelled calls, errors.

`make vllm` installs it; `make test-vllm` runs this on both of its replicas, one for each kind of log-probabilities.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.grammars.compiler import Compiler, Tokens
from ratchet.core.grammars.walk import allowed, open_mask
from tests.support.engine_process import Published
from tests.support.gateway_scene import ROLE, scene
from tests.support.grammars import constraint, read_tokenizer
from tests.support.joined_streams import events_of, joined
from tests.support.servers import RunningServer
from tests.support.vllm_process import PROCESSED, RunningVllm

MESSAGES = [{"role": "user", "content": "where is my order K47"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "strict": True,  # else the arguments are any JSON, and this model never ends them
        "parameters": {
            "type": "object",
            "properties": {"kind": {"enum": ["order", "bill"]}},
            "required": ["kind"],
            "additionalProperties": False,
        },
    },
}
ENUM = {"type": "json_schema", "json_schema": {"name": "kind", "schema": {"enum": ["order", "bill"]}}}
CONSTRAINED: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": ENUM},
    "named tool": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look_up"}}},
    "required tool": {"tools": [TOOL], "tool_choice": "required"},
}
LOOSE: dict[str, Any] = {"type": "function", "function": {**TOOL["function"], "strict": False}}
UNSAID: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
NAMED = CONSTRAINED["named tool"]["tool_choice"]
FORCED: dict[str, tuple[dict[str, Any], bool]] = {
    "strict, named": ({"tools": [TOOL], "tool_choice": NAMED}, False),
    "not strict, named": ({"tools": [LOOSE], "tool_choice": NAMED}, True),
    "not strict, required": ({"tools": [LOOSE], "tool_choice": "required"}, True),
    "without strict, named": ({"tools": [UNSAID], "tool_choice": NAMED}, True),
}
"""Requests that force a call -> whether its arguments may be any JSON: a bare number too."""
SURE = 1e-3
"""Difference of two log-probabilities that are the same: of a float32 model computed in other orders, in nats."""


MASKED = -1000.0
"""vLLM writes -9999 for what cannot be drawn."""


def asked(vllm: RunningVllm, route: str, **members: Any) -> dict[str, Any]:
    prompt = {"prompt": "where is"} if route == "completions" else {"messages": MESSAGES}
    return {"model": vllm.model, **prompt, "max_tokens": 24, "return_token_ids": True, **members}


def answered(vllm: RunningVllm, route: str, **members: Any) -> dict[str, Any]:
    answer = vllm.http.post(f"/v1/{route}", json=asked(vllm, route, **members))
    assert answer.status_code == 200, answer.text
    return answer.json()


def present(value: Any) -> Any:
    """JSON without the members that are null or empty, and without what differs from call to call."""
    if isinstance(value, dict):
        kept = {name: present(one) for name, one in value.items() if name not in {"id", "created", "stop_reason"}}
        return {name: one for name, one in kept.items() if one not in (None, "", [], {})}
    return [present(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("route", "members"),
    [
        ("chat/completions", {"temperature": 0, "logprobs": True, "top_logprobs": 3}),
        ("chat/completions", {"temperature": 0.7, "seed": 5, "logprobs": True, "n": 2}),
        ("completions", {"temperature": 0, "logprobs": 2}),
        ("completions", {"temperature": 0.7, "seed": 5, "logprobs": 0}),
    ],
)
def test_a_stream_joined_is_the_whole_answer(vllm: RunningVllm, route: str, members: dict[str, Any]) -> None:
    whole = answered(vllm, route, **members)
    body = asked(vllm, route, **members, stream=True, stream_options={"include_usage": True})
    chunks = events_of(vllm.http.post(f"/v1/{route}", json=body).content)
    streamed = joined(chunks)
    ids = [choice["token_ids"] for choice in whole["choices"]]
    assert [choice["token_ids"] for choice in streamed["choices"]] == ids
    assert present(streamed) == present({name: whole[name] for name in streamed})
    first = chunks[0]
    assert (first.get("prompt_token_ids") or first["choices"][0].get("prompt_token_ids")) is not None
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice.get("token_ids")):
        assert len(choice["token_ids"]) == logprobs_in(choice)


def logprobs_in(choice: dict[str, Any]) -> int:
    logprobs = choice["logprobs"]
    return len(logprobs["token_logprobs"] if "token_logprobs" in logprobs else logprobs["content"])


@torch.inference_mode()
def model_logprobs(published: Published, prompt: Sequence[int], output: Sequence[int], temperature: float) -> Any:
    """[T, V]: the log-probabilities of every token at each place of `output`, by transformers and PEFT, unmasked."""
    base: Any = AutoModelForCausalLM.from_pretrained(published.directory)
    model: Any = PeftModel.from_pretrained(base, str(published.adapter_directory)).eval()
    logits = model(input_ids=torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1)


@pytest.mark.parametrize("constraint", CONSTRAINED)
def test_logprobs_of_a_constrained_answer_are_of_what_was_allowed(vllm: RunningVllm, constraint: str) -> None:
    """Of both kinds: masked and renormalised. Only the processed ones are after the temperature, as what was drawn."""
    members = {"logprobs": True, "top_logprobs": vllm.vocabulary, "temperature": 0.7, "seed": 3, "max_tokens": 60}
    answer = answered(vllm, "chat/completions", **members, **CONSTRAINED[constraint])
    choice = answer["choices"][0]
    temperature = 0.7 if vllm.logprobs_mode == PROCESSED else 1.0
    unmasked = model_logprobs(vllm.published, answer["prompt_token_ids"], choice["token_ids"], temperature)
    narrowed = 0
    for place, (token, entry) in enumerate(zip(choice["token_ids"], choice["logprobs"]["content"], strict=True)):
        allowed = [top["logprob"] for top in entry["top_logprobs"] if top["logprob"] > MASKED]
        assert sum(map(math.exp, allowed)) == pytest.approx(1, abs=SURE)
        narrowed += len(allowed) < vllm.vocabulary
        # What masking adds to a log-probability is the same for all tokens that are allowed.
        added = entry["logprob"] - float(unmasked[place, token])
        assert all(float((unmasked[place] + added - logprob).abs().min()) < SURE for logprob in allowed)
    assert narrowed


@pytest.mark.parametrize("forced", FORCED)
def test_a_learners_grammar_of_a_forced_call_allows_what_vllm_allows(vllm: RunningVllm, forced: str) -> None:
    members, any_json = FORCED[forced]
    drawn = {"logprobs": True, "top_logprobs": vllm.vocabulary, "temperature": 1.5, "seed": 3, "max_tokens": 60}
    (choice,) = answered(vllm, "chat/completions", **drawn, **members)["choices"]
    tokenizer = read_tokenizer(vllm.published.directory)
    tokens = Tokens(tokenizer, vllm.vocabulary, [tokenizer.eos_token_id], "hermes")
    with closing(Compiler()) as compiler:
        walk = compiler.compile(tokens, constraint(**members)).walk()
    text, numbers = "", False
    for token, entry in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
        mask = open_mask(1, vllm.vocabulary)
        walk.allow(mask, 0)
        theirs = [top["token"] for top in entry["top_logprobs"] if top["logprob"] > MASKED]
        assert int(allowed(mask, vllm.vocabulary).sum()) == len(theirs)
        assert walk.accept(token)
        numbers = numbers or (text.endswith(('"arguments":', '"arguments": ')) and "5" in theirs)
        text += entry["token"]
    assert numbers == any_json, text


async def test_a_stream_that_its_client_leaves_stops_the_work(vllm: RunningVllm) -> None:
    generated, limit, answers = measured(vllm, "vllm:generation_tokens_total"), 400, 32
    body = asked(vllm, "chat/completions", max_tokens=limit, n=answers, ignore_eos=True, stream=True)
    with vllm.http.stream("POST", "/v1/chat/completions", json=body) as stream:
        assert next(stream.iter_lines())
    await eventually(lambda: asyncio.to_thread(lambda: measured(vllm, "vllm:num_requests_running") == 0))
    assert 0 < measured(vllm, "vllm:generation_tokens_total") - generated < limit * answers


def measured(vllm: RunningVllm, name: str) -> float:
    """A metric's value, the sum over its labels."""
    lines = vllm.http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


def test_a_prompt_beyond_the_context_is_refused_in_words_that_clients_know(vllm: RunningVllm) -> None:
    long = [{"role": "user", "content": "where " * 600}]
    answer = vllm.http.post("/v1/chat/completions", json={"model": vllm.model, "messages": long})
    assert answer.status_code == 400
    assert "maximum context length is 512 tokens" in answer.json()["error"]["message"]


async def test_a_gateway_in_between_changes_no_token_of_a_stream(
    vllm: RunningVllm, nats: RunningServer, tmp_path: Path
) -> None:
    """The agent reads vLLM's text, and the turn has vLLM's ids and log-probabilities."""
    members: dict[str, Any] = {"temperature": 0.7, "seed": 5, "max_tokens": 24, "top_p": 1, "top_k": 0}
    direct = answered(vllm, "chat/completions", logprobs=True, **members)
    mode, digest = vllm.logprobs_mode, vllm.published.adapter.digest
    async with scene(nats, tmp_path, digest, engine_url=vllm.url, engine_logprobs_mode=mode) as here:
        top_k = {"top_k": members.pop("top_k")}
        messages: Any = MESSAGES
        stream = await here.client().chat.completions.create(
            model=ROLE, messages=messages, stream=True, extra_body=top_k, **members
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        (turn,) = await here.published(Turn, 1)
    (choice,) = direct["choices"]
    assert "".join(pieces) == (choice["message"]["content"] or "")
    assert (turn.policy.digest, turn.output_token_ids) == (digest, choice["token_ids"])
    given = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert turn.behavior_logprobs == pytest.approx(given, abs=SURE)
    assert turn.trainable.ok == (mode == PROCESSED)


def test_call_that_limit_cuts_is_text_in_a_whole_answer_and_call_in_stream(vllm: RunningVllm) -> None:
    """The one difference that was found: ids and log-probabilities are the same."""
    members = {"temperature": 0, "logprobs": True, "max_tokens": 40, **CONSTRAINED["named tool"]}
    members["tools"] = [{"type": "function", "function": {**TOOL["function"], "strict": False}}]
    (whole,) = answered(vllm, "chat/completions", **members)["choices"]
    body = asked(vllm, "chat/completions", **members, stream=True)
    (streamed,) = joined(events_of(vllm.http.post("/v1/chat/completions", json=body).content))["choices"]
    assert whole["finish_reason"] == streamed["finish_reason"] == "length"
    assert (streamed["token_ids"], present(streamed["logprobs"])) == (whole["token_ids"], present(whole["logprobs"]))
    assert whole["message"]["content"].startswith("<tool_call>")
    assert streamed["message"]["tool_calls"][0]["function"]["name"] == "look_up"
