"""Reads tool calls from texts with vLLM's own parsers, in vLLM's Python.

    .vllm/bin/python -P tests/support/vllm_parsers.py < texts.json

reads a list of (parser, directory of a tokenizer, tools, text) and prints, for each, the content and the calls that
vLLM reads.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import import_module
from typing import Any


@cache
def tokenizer_in(directory: str) -> Any:
    return import_module("transformers").AutoTokenizer.from_pretrained(directory)


def parsed(parser: str, directory: str, tools: list[Any], text: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Content, and each call's name and arguments."""
    request = import_module("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "hi"}], tools=tools
    )
    kind = import_module("vllm.tool_parsers").ToolParserManager.get_tool_parser(parser)
    seen = kind(tokenizer_in(directory), request.tools).extract_tool_calls(text, request)
    return seen.content, [(call.function.name, call.function.arguments) for call in seen.tool_calls]


if __name__ == "__main__":
    answers = [parsed(*one) for one in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
