"""Holds answers against vLLM's own models of them, in vLLM's Python.

    .vllm/bin/python -P tests/support/vllm_models.py < answers.json

reads a list of (kind, answer) and prints, for each, what vLLM's model of that kind refuses or understands otherwise,
and the members that it does not know.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

KINDS = {
    "chat": ("openai.chat_completion", "ChatCompletionResponse"),
    "chat chunk": ("openai.chat_completion", "ChatCompletionStreamResponse"),
    "completion": ("openai.completion", "CompletionResponse"),
    "completion chunk": ("openai.completion", "CompletionStreamResponse"),
    "tokens": ("serve.tokenize", "TokenizeResponse"),
    "models": ("serve.engine", "ModelList"),
    "error": ("serve.engine", "ErrorResponse"),
}


def unknown(value: Any, place: str = "") -> Iterator[str]:
    """The members of a validated answer that its model does not name."""
    if isinstance(value, list):
        for one in value:
            yield from unknown(one, f"{place}[]")
    elif hasattr(value, "model_fields_set"):
        for name in value.model_extra or {}:
            yield f"{place}.{name}"
        for name in type(value).model_fields:
            yield from unknown(getattr(value, name), f"{place}.{name}")


def faults(kind: str, answer: object) -> list[str]:
    module, name = KINDS[kind]
    model = getattr(import_module(f"vllm.entrypoints.{module}.protocol"), name)
    try:
        value = model.model_validate_json(json.dumps(answer))
    except ValueError as error:  # pydantic's
        return [f"{name}: {error}"]
    understood = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return [*sorted(set(unknown(value, kind))), *([] if understood == answer else [f"{name}: {understood}"])]


if __name__ == "__main__":
    strange = [faults(kind, answer) for kind, answer in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(strange) + "\n")
