"""Finished completions in the JSON form of OpenAI's API with vLLM's token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ratchet.bus.message import JsonObject
from ratchet.engine_local.domain.requests import AnswerOptions
from ratchet.engine_local.tool_formats import Reply

Spell = Callable[[int], str]
"""Token id to its text."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What came out of the sampler. `token_ids` includes the end token when there is one."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """After temperature, top_p and top_k: of the distribution that was drawn from."""
    finish_reason: str
    """`stop` or `length`."""
    prompt_tokens: int
    cached_tokens: int = 0
    top: Sequence[Sequence[tuple[int, float]]] = ()
    """Per token the most likely (id, log-probability), most likely first."""


LOGPROBS_MODE = "processed_logprobs"
"""vLLM's name for log-probabilities of the distribution that was drawn from, after the temperature."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What identifies an answer."""

    id: str
    created: int
    """Unix seconds."""
    model: str


def chat_answer(
    stamp: Stamp, prompt_ids: Sequence[int], done: Completion, reply: Reply, options: AnswerOptions, spell: Spell
) -> JsonObject:
    """The body of `/v1/chat/completions`."""
    logprobs: list[JsonObject] = []
    if options.logprobs:
        tops = done.top or [()] * len(done.token_ids)
        for token, logprob, top in zip(done.token_ids, done.logprobs, tops, strict=True):
            likely = [_spelled(*one, spell) for one in top]
            logprobs.append({**_spelled(token, logprob, spell), "top_logprobs": likely})
    choice: JsonObject = {
        "index": 0,
        "message": reply.message(f"call_{stamp.id.removeprefix('chatcmpl-')[:12]}"),
        "logprobs": {"content": logprobs} if options.logprobs else None,
        "finish_reason": "tool_calls" if reply.calls and done.finish_reason == "stop" else done.finish_reason,
    }
    return _answer(stamp, "chat.completion", choice, prompt_ids, done, options)


def text_answer(
    stamp: Stamp, prompt_ids: Sequence[int], done: Completion, text: str, options: AnswerOptions, spell: Spell
) -> JsonObject:
    """The body of `/v1/completions`."""
    logprobs: JsonObject | None = None
    if options.logprobs:
        tokens = [spell(token) for token in done.token_ids]
        logprobs = {
            "tokens": tokens,
            "token_logprobs": list(done.logprobs),
            "top_logprobs": [{spell(token): logprob for token, logprob in top} for top in done.top] or None,
            "text_offset": list(accumulate(map(len, tokens), initial=0))[:-1],
        }
    choice: JsonObject = {
        "index": 0,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": done.finish_reason,
    }
    answer = _answer(stamp, "text_completion", choice, prompt_ids, done, options)
    if options.token_ids:
        choice["prompt_token_ids"] = answer.pop("prompt_token_ids")
    return answer


def _answer(
    stamp: Stamp, kind: str, choice: JsonObject, prompt_ids: Sequence[int], done: Completion, options: AnswerOptions
) -> JsonObject:
    answer: JsonObject = {
        "id": stamp.id,
        "object": kind,
        "created": stamp.created,
        "model": stamp.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": done.prompt_tokens,
            "completion_tokens": len(done.token_ids),
            "total_tokens": done.prompt_tokens + len(done.token_ids),
            "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
        },
    }
    if options.token_ids:
        choice["token_ids"] = list(done.token_ids)
        answer["prompt_token_ids"] = list(prompt_ids)
        answer["logprobs_mode"] = LOGPROBS_MODE
    return answer


def _spelled(token: int, logprob: float, spell: Spell) -> JsonObject:
    text = spell(token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
