"""Does a call draw from the policy's own distribution? Only then do its log-probabilities say what the policy does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""What an engine is told where the agent says nothing: vLLM would take its model's generation config instead."""

_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "function_call": ("auto", "none"),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "thinking_token_budget": (-1,),
    "tool_choice": ("auto", "none"),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}
"""Members with which an engine (vLLM, in all its versions) masks or moves what the policy would have drawn from, or
chooses among several answers -> the values, beside null, with which it does not."""
_TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})
"""Types of content parts that are nothing but text."""


def is_constrained(body: Mapping[str, Any]) -> bool:
    """Whether the request asks for anything but a free draw. `Any`: it is JSON, and only compared."""
    named = any(body.get(name) is not None and body[name] not in harmless for name, harmless in _HARMLESS.items())
    tools = body.get("tools")
    return named or (isinstance(tools, list) and any(_is_strict(tool) for tool in cast("list[Any]", tools)))


def is_multimodal(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message holds more than text: token ids stand for an image, but do not show it."""
    contents = [message.get("content") for message in messages]
    parts: list[Any] = [
        part for content in contents if isinstance(content, list) for part in cast("list[Any]", content)
    ]
    return any(not isinstance(part, dict) or part.get("type") not in _TEXTS for part in parts)


def _is_strict(tool: Any) -> bool:
    """A tool whose arguments the engine forces into their schema (vLLM from 0.25, also under `tool_choice: auto`)."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and bool(function.get("strict"))


def with_neutral(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request with every sampling value said: the agent's own, else the neutral one."""
    said = {key: value for key, value in body.items() if key not in NEUTRAL or value is not None}
    return {**NEUTRAL, **said}
