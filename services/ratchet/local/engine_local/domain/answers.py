"""Finished completions in the JSON form of OpenAI's API with vLLM's token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.tool_formats import Reply
from ratchet.local.engine_local.domain.requests import AnswerOptions

Spell = Callable[[int], str]
"""Token id to its text."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token: its id, its log-probability under the distribution drawn from, and the most likely others."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()
    """(id, log-probability), most likely first."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of a prompt: its log-probability after those before it, at temperature 1, and its rank (1: likeliest)."""

    token: int
    logprob: float
    rank: int
    top: Sequence[tuple[int, float]] = ()
    """(id, log-probability), most likely first."""


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
    scored: Sequence[Scored] | None = None
    """The tokens of the prompt but the first, where they were asked for."""

    def tokens(self) -> Iterator[Drawn]:
        """The tokens one by one."""
        tops = self.top or [()] * len(self.token_ids)
        for token, logprob, top in zip(self.token_ids, self.logprobs, tops, strict=True):
            yield Drawn(token, logprob, top)


LOGPROBS_MODE = "processed_logprobs"
"""vLLM's name for log-probabilities of the distribution that was drawn from, after the temperature."""


IMPOSSIBLE = -9999.0
"""Stands for minus infinity, which JSON cannot express, as in vLLM."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What identifies an answer."""

    id: str
    created: int
    """Unix seconds."""
    model: str

    def head(self, kind: str) -> JsonObject:
        """The members of every body of the answer; `kind` is its `object`."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def call_prefix(self, choice: int) -> str:
        """What the ids of the tool calls of a choice begin with; no other choice's do."""
        return f"call_{self.id.rpartition('-')[2][:12]}_{choice}"


@dataclass(frozen=True, slots=True)
class Given:
    """What is known of an answer before its first token."""

    stamp: Stamp
    prompt_ids: Sequence[int]
    options: AnswerOptions
    spell: Spell

    def name(self, token: int) -> str:
        """What log-probabilities call a token of the answer."""
        return f"token_id:{token}" if self.options.tokens_as_ids else self.spell(token)


def chat_answer(given: Given, done: Sequence[Completion], replies: Sequence[Reply]) -> JsonObject:
    """The body of `/v1/chat/completions`: one choice for each completion."""
    choices = [
        {
            "index": index,
            "message": reply.message(given.stamp.call_prefix(index)),
            "logprobs": chat_logprobs(given, one.tokens()),
            "finish_reason": finish_reason(one, reply),
        }
        for index, (one, reply) in enumerate(zip(done, replies, strict=True))
    ]
    answer = _answer(given, "chat.completion", choices, done)
    if given.options.token_ids:
        answer["prompt_token_ids"] = list(given.prompt_ids)
    return answer


def text_answer(given: Given, done: Sequence[Completion], replies: Sequence[Reply]) -> JsonObject:
    """The body of `/v1/completions`: one choice for each completion."""
    choices: list[JsonObject] = []
    for index, (one, reply) in enumerate(zip(done, replies, strict=True)):
        logprobs, reason = text_logprobs(given, one.tokens(), 0), finish_reason(one, reply)
        choices.append({"index": index, "text": reply.content or "", "logprobs": logprobs, "finish_reason": reason})
        if given.options.token_ids:
            choices[-1]["prompt_token_ids"] = list(given.prompt_ids)
        if done[0].scored is not None:
            choices[-1]["prompt_logprobs"] = prompt_logprobs(given, done[0].scored)
    return _answer(given, "text_completion", choices, done)


def finish_reason(done: Completion, reply: Reply) -> str:
    """`tool_calls` for an answer that ends by itself with calls."""
    return "tool_calls" if reply.calls and done.finish_reason == "stop" else done.finish_reason


def chat_logprobs(given: Given, tokens: Iterator[Drawn]) -> JsonObject | None:
    """`logprobs` of a chat's choice for these tokens; None unless asked for."""
    if not given.options.logprobs:
        return None
    listed: list[JsonObject] = []
    for drawn in tokens:
        likely = [_spelled(given, *other) for other in drawn.top]
        listed.append({**_spelled(given, drawn.token, drawn.logprob), "top_logprobs": likely})
    return {"content": listed}


def text_logprobs(given: Given, tokens: Iterator[Drawn], offset: int) -> JsonObject | None:
    """`logprobs` of a text's choice for these tokens, which begin at `offset` in it; None unless asked for."""
    if not given.options.logprobs:
        return None
    drawn = list(tokens)
    spelled = [given.name(draw.token) for draw in drawn]
    top = [{given.name(token): logprob for token, logprob in draw.top} for draw in drawn]
    return {
        "tokens": spelled,
        "token_logprobs": [draw.logprob for draw in drawn],
        "top_logprobs": top if given.options.top_logprobs else None,
        "text_offset": list(accumulate(map(len, spelled), initial=offset))[:-1],
    }


def prompt_logprobs(given: Given, scored: Sequence[Scored]) -> list[dict[str, JsonObject] | None]:
    """`prompt_logprobs` of a text's choice in vLLM's form: nothing for the first token, then for each one its own value
    and those of the most likely ones, by token id."""
    listed: list[dict[str, JsonObject] | None] = [None]
    for own in scored:
        ranked = [(own.token, own.logprob, own.rank), *((*other, rank) for rank, other in enumerate(own.top, 1))]
        values = {
            str(token): {"logprob": max(logprob, IMPOSSIBLE), "rank": rank, "decoded_token": given.spell(token)}
            for token, logprob, rank in ranked
        }
        listed.append(values)
    return listed


def usage(done: Sequence[Completion]) -> JsonObject:
    """The tokens of an answer: its prompt counts once, whatever the number of choices."""
    prompt, completion = done[0].prompt_tokens, sum(len(row.token_ids) for row in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": done[0].cached_tokens},
    }


def _answer(given: Given, kind: str, choices: list[JsonObject], done: Sequence[Completion]) -> JsonObject:
    answer: JsonObject = {**given.stamp.head(kind), "choices": choices, "usage": usage(done)}
    answer["logprobs_mode"] = LOGPROBS_MODE
    if given.options.token_ids:
        for choice, row in zip(choices, done, strict=True):
            choice["token_ids"] = list(row.token_ids)
    return answer


def _spelled(given: Given, token: int, logprob: float) -> JsonObject:
    text = given.name(token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
