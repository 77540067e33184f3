"""An engine's answer: taken apart for the turn, and shown to the agent without what only the gateway had asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.contract.turn import Provider, Usage
from ratchet.core.rules.capture import Reason
from ratchet.core.rules.engines import PROCESSED_LOGPROBS, RAW_LOGPROBS
from ratchet.dialects.requests import CallRequest, Fields

V = TypeVar("V")

PROCESSED, RAW = "processed", "raw"
"""Log-probabilities after the temperature, from which the sampler drew; and before it."""
MODES: Mapping[object, str] = {PROCESSED_LOGPROBS: PROCESSED, RAW_LOGPROBS: RAW}
"""vLLM's names for them, in an answer's `logprobs_mode` and in the setting."""

NAME_CHARACTERS = 200
"""Longest id or name in an answer that a turn records."""
_FIELDS = msgspec.json.Decoder(Fields)
_CHOICES = msgspec.json.Decoder(list[Fields])


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer, taken apart."""

    message: JsonObject | None
    prompt_ids: Sequence[int] | None = None
    output_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    logprob_mode: str | None = None
    """Which distribution the log-probabilities are of; None where neither engine nor setting names it."""
    usage: Usage | None = None
    provider: Provider | None = None
    finish_reason: str | None = None
    error: str | None = None
    barred: Reason | None = None
    """Why no learner may use the answer, whatever it holds."""


def choice_of(answer: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The choice with this number. `Any`: it is JSON from another process.

    It is the one whose `index` is the number, for engines may answer in any order; without indices its place counts.
    Raises like `dict` and `list` do, and `TypeError` for any choice that is not an object: agents see all of them.
    """
    choices: Any = answer["choices"]
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in cast("list[Any]", choices)):
        raise TypeError("choices must be a list of objects")
    given = cast("list[Mapping[str, Any]]", choices)
    by_index = {index: choice for choice in given if isinstance(index := choice.get("index"), int)}
    if len(by_index) == len(given):
        return by_index[number]
    return given[number]


MOST_TOKENS = 100_000_000
"""No answer and no prompt has more: what reports more is wrong."""


def usage_of(answer: Mapping[str, Any], number: int, output_ids: Sequence[int] | None) -> Usage | None:
    """The tokens that an engine reports for one choice. `Any`: it is JSON from another process, read member by member.

    Engines report one sum for all choices: where there are several, each has the tokens that its ids count, or the
    first one all. Raises `ValueError` for numbers that no count of tokens is.
    """
    usage = answer.get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    if len(answer["choices"]) > 1:
        own = choice_of(answer, number).get("prompt_token_ids")  # of a text call, whose prompts may be several
        prompt = len(own) if own else prompt
        completion = len(output_ids) if output_ids is not None else completion if number == 0 else 0
    further = usage.get("completion_tokens_details") or {}
    cached, reasoning = details.get("cached_tokens"), further.get("reasoning_tokens") if number == 0 else None
    if not all(0 <= count <= MOST_TOKENS for count in (prompt, completion, cached or 0, reasoning or 0)):
        raise ValueError("no number of tokens")
    return Usage(prompt=prompt, completion=completion, cached=cached, reasoning=reasoning)


def is_miscounted(answer: Mapping[str, Any], asked: int) -> bool:
    """Whether an engine gave another number of answers than it was asked for, or counts other tokens than those of all
    of them: then it chose among several, or something got lost on the way. `Any`: it is JSON from another process.

    Raises like `dict` and `list` do.
    """
    choices: Any = answer.get("choices")
    if choices is None:
        return False  # of an API whose answer is one
    if len(choices) != asked:
        return True
    counts = [len(choice["token_ids"]) for choice in choices if choice.get("token_ids") is not None]
    usage = answer.get("usage")
    return bool(usage) and len(counts) == asked and sum(counts) != usage.get("completion_tokens", 0)


def provider_of(answer: Mapping[str, Any], request_id: str | None = None) -> Provider | None:
    """What a whole answer says about itself. `request_id`: its header's. `Any`: it is JSON from another process."""
    named = {
        "request_id": request_id,
        "id": answer.get("id"),
        "model": answer.get("model"),
        "fingerprint": answer.get("system_fingerprint"),
        "service_tier": answer.get("service_tier"),
    }
    texts = {name: value for name, value in named.items() if isinstance(value, str) and len(value) <= NAME_CHARACTERS}
    return Provider(**texts) if texts else None


class _Message(msgspec.Struct):
    """What an agent sends back of an answer. `Any`: it is JSON from another process."""

    content: Any = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: Any = None

    @property
    def json(self) -> JsonObject:
        spoken = {"content": self.content, "tool_calls": self.tool_calls, "function_call": self.function_call}
        return {"role": "assistant"} | {name: value for name, value in spoken.items() if value is not None}


class _ChatChoice(msgspec.Struct):
    message: _Message
    index: Any = None


class _TextChoice(msgspec.Struct):
    text: str
    index: Any = None

    @property
    def message(self) -> _Message:
        return _Message(self.text)


class ChatEnvelope(msgspec.Struct):
    """A chat completion as far as the gateway relies on its shape."""

    choices: list[_ChatChoice]

    def messages(self) -> Sequence[JsonObject]:
        """See `AnswerEnvelope`."""
        return _spoken(self.choices)


class TextEnvelope(msgspec.Struct):
    """A text completion as far as the gateway relies on its shape."""

    choices: list[_TextChoice]

    def messages(self) -> Sequence[JsonObject]:
        """See `AnswerEnvelope`."""
        return _spoken(self.choices)


def _spoken(choices: Sequence[_ChatChoice] | Sequence[_TextChoice]) -> list[JsonObject]:
    """The messages in the order of their indices, as `choice_of` finds them."""
    by_index = {choice.index: choice for choice in choices if isinstance(choice.index, int)}
    ordered = [by_index[index] for index in sorted(by_index)] if len(by_index) == len(choices) else choices
    return [choice.message.json for choice in ordered]


class AnswerEnvelope(Protocol):
    """A whole answer as far as the gateway relies on its shape: read without what only turns hold."""

    @property
    def choices(self) -> Sequence[object]:
        """The answers that it holds: at least one, or it is none."""
        ...

    def messages(self) -> Sequence[JsonObject] | None:
        """What the answers say, as assistant messages; None where that takes the whole answer."""
        ...


def hidden_members(request: CallRequest) -> tuple[frozenset[str], frozenset[str]]:
    """The members of an answer, and of its choices, that only the gateway had asked for."""
    hidden = frozenset[str]() if request.wants_logprobs else frozenset({"logprobs"})
    if request.wants_token_ids:
        return frozenset({"logprobs_mode"}), hidden
    return frozenset({"logprobs_mode", "prompt_token_ids"}), hidden | {"token_ids", "prompt_token_ids"}


def agent_body(request: CallRequest, answer: bytes) -> bytes:
    """The body that the agent gets: the engine's, without what only the gateway had asked for.

    Raises `msgspec.DecodeError` for any other shape.
    """
    of_answer, of_choices = hidden_members(request)
    fields = _FIELDS.decode(answer)
    choices = [without(choice, of_choices) for choice in _CHOICES.decode(fields["choices"])]
    return msgspec.json.encode({**without(fields, of_answer), "choices": choices})


def without(members: Mapping[str, V], hidden: Set[str]) -> dict[str, V]:
    """The members of an object but the hidden ones."""
    return {name: value for name, value in members.items() if name not in hidden}
