"""Completion requests read from JSON: what this engine honours, and a refusal for what it would have to ignore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from ratchet.bus.message import JsonObject
from ratchet.core.contract.turn import Constraint
from ratchet.core.errors import BadRequest
from ratchet.core.rules.constraints import Irreproducible, constraint_of

MAX_TOP_LOGPROBS = 20
"""Most candidates of one token, also of a prompt's."""
MAX_STOPS = 16
MAX_CHOICES = 128
"""As OpenAI has it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the most likely one."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    """Tokens less likely than this share of the most likely one are not drawn."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Taken from the logits of tokens of the answer so far: once, and for each time."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens of prompt and answer, and multiplies negative ones."""

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the distribution."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What the answer carries beside its text."""

    logprobs: bool = False
    top_logprobs: int = 0
    token_ids: bool = False
    tokens_as_ids: bool = False
    """Log-probabilities name a token by its id, as `token_id:7`: several tokens may have one text."""
    prompt_logprobs: int | None = None
    """Also the log-probabilities of the prompt's tokens, with so many candidates each; None: not asked for."""
    choices: int = 1
    """Answers to the one prompt."""
    stream: bool = False
    stream_usage: bool = False
    """A stream ends with a chunk that has the usage."""


@dataclass(frozen=True, slots=True)
class ChatCall:
    """`POST /v1/chat/completions`."""

    model: str
    messages: list[JsonObject]
    tools: list[JsonObject]
    sampling: Sampling
    options: AnswerOptions
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """`POST /v1/completions` with one prompt, as text or as token ids."""

    model: str
    prompt: str | list[int]
    sampling: Sampling
    options: AnswerOptions
    constraint: Constraint | None = None


_PENALTY: tuple[Callable[[float], bool], str] = (lambda x: -2 <= x <= 2, "between -2 and 2")
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "functions": (),
    "function_call": (),
}
"""Members that change the answer and are not implemented, beside those of `rules.constraints` that move the
distribution -> the values under which they change nothing."""


def read_chat(body: JsonObject) -> ChatCall:
    """Raises `BadRequest` naming the member at fault."""
    _refuse_unsupported(body)
    if body.get("prompt_logprobs"):
        raise _wrong("prompt_logprobs", "is supported by /v1/completions alone")
    messages = _objects(body, "messages")
    if not messages:
        raise _wrong("messages", "must hold at least one message")
    tools = [] if body.get("tool_choice") == "none" else _objects(body, "tools")
    options = _options(body, _flag(body, "logprobs"), _integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS))
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    constraint = _constraint(body, tools=True)
    return ChatCall(_model(body), messages, tools, _sampling(body, limit), options, constraint)


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """`POST /classify` with one conversation."""

    model: str
    messages: list[JsonObject]
    tools: list[JsonObject]


def read_score(body: JsonObject) -> ScoreCall:
    """Raises `BadRequest` naming the member at fault."""
    messages = _objects(body, "messages")
    if not messages:
        raise _wrong("messages", "must hold at least one message")
    return ScoreCall(_model(body), messages, _objects(body, "tools"))


def read_completion(body: JsonObject) -> CompletionCall:
    """Raises `BadRequest` naming the member at fault."""
    _refuse_unsupported(body)
    prompt = body.get("prompt")
    if not isinstance(prompt, str) and not _is_token_ids(prompt):
        raise _wrong("prompt", "must be one text or one list of token ids")
    asked = _integer(body, "logprobs", 0, MAX_TOP_LOGPROBS)
    of_prompt = _integer(body, "prompt_logprobs", 0, MAX_TOP_LOGPROBS)
    if _flag(body, "stream") and of_prompt:  # as in vLLM
        raise _wrong("prompt_logprobs", "are not available when stream is true")
    of_prompt = None if body.get("stream") else of_prompt
    options = replace(_options(body, asked is not None, asked), prompt_logprobs=of_prompt)
    sampling, constraint = _sampling(body, "max_tokens"), _constraint(body, tools=False)
    return CompletionCall(_model(body), cast("str | list[int]", prompt), sampling, options, constraint)


def _constraint(body: JsonObject, *, tools: bool) -> Constraint | None:
    """What the answer follows. What a learner could not compute again is refused."""
    constraint = constraint_of(body, tools=tools)
    if isinstance(constraint, Irreproducible):
        raise _wrong(constraint.param, f"is not supported by this engine: it {constraint.reason}")
    return constraint


def _options(body: JsonObject, logprobs: bool, top_logprobs: int | None) -> AnswerOptions:
    stream, streaming = _flag(body, "stream"), body.get("stream_options")
    if streaming is not None and not (stream and isinstance(streaming, dict)):
        raise _wrong("stream_options", "must be an object, and needs stream")
    how = cast("JsonObject", streaming or {})
    if how.get("continuous_usage_stats"):
        raise _wrong("stream_options", "continuous_usage_stats is not supported by this engine")
    return AnswerOptions(
        logprobs=logprobs,
        top_logprobs=top_logprobs or 0,
        token_ids=_flag(body, "return_token_ids"),
        tokens_as_ids=_flag(body, "return_tokens_as_token_ids"),
        choices=_integer(body, "n", 1, MAX_CHOICES) or 1,
        stream=stream,
        stream_usage=_flag(how, "include_usage"),
    )


def _sampling(body: JsonObject, limit: str) -> Sampling:
    top_k = _integer(body, "top_k", -1, 1_000_000) or 0
    stops: Any = body.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in cast("list[object]", stops)):
        raise _wrong("stop", "must be a text or a list of texts")
    if len(cast("list[str]", stops)) > MAX_STOPS:
        raise _wrong("stop", f"may hold at most {MAX_STOPS} texts")
    stop_ids: Any = body.get("stop_token_ids") or []
    if not _is_token_ids(stop_ids) and stop_ids != []:
        raise _wrong("stop_token_ids", "must be a list of token ids")
    return Sampling(
        temperature=_number(body, "temperature", 1.0, lambda x: 0 <= x <= 2, "between 0 and 2"),
        top_p=_number(body, "top_p", 1.0, lambda x: 0 < x <= 1, "above 0 and at most 1"),
        top_k=max(0, top_k),
        seed=_integer(body, "seed", -(2**63), 2**63 - 1),
        max_tokens=_integer(body, limit, 1, 1_000_000),
        stop=tuple(cast("list[str]", stops)),
        stop_token_ids=tuple(stop_ids),
        min_p=_number(body, "min_p", 0.0, lambda x: 0 <= x <= 1, "between 0 and 1"),
        presence_penalty=_number(body, "presence_penalty", 0.0, *_PENALTY),
        frequency_penalty=_number(body, "frequency_penalty", 0.0, *_PENALTY),
        repetition_penalty=_number(body, "repetition_penalty", 1.0, lambda x: 0 < x <= 10, "above 0 and at most 10"),
    )


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise _wrong(name, f"{value!r} is not supported by this engine")


def _model(body: JsonObject) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise _wrong("model", "must be a text")
    return model


def _objects(body: JsonObject, name: str) -> list[JsonObject]:
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[object]", value)):
        raise _wrong(name, "must be a list of objects")
    return cast("list[JsonObject]", value)


def _flag(body: JsonObject, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, "must be true or false")
    return bool(value)


def _number(body: JsonObject, name: str, default: float, fits: Callable[[float], bool], rule: str) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
        raise _wrong(name, f"must be {rule}")
    return float(value)


def _integer(body: JsonObject, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(name, f"must be a whole number from {low} to {high}")
    return value


def _is_token_ids(value: object) -> bool:
    if not isinstance(value, list):
        return False
    ids = cast("list[object]", value)
    return bool(ids) and all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids)


def _wrong(name: str, rule: str) -> BadRequest:
    return BadRequest(f"{name} {rule}", param=name)
