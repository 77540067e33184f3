"""Tool-call formats by name: a tokenizer's config gives it in `ratchet_tool_format`, or its template shows it."""

from ratchet.core.chat_templates.tool_formats.base import Reply, ToolCall, ToolFormat
from ratchet.core.chat_templates.tool_formats.call_token import CallToken
from ratchet.core.chat_templates.tool_formats.hermes import Hermes
from ratchet.core.chat_templates.tool_formats.llama3_json import Llama3Json
from ratchet.core.chat_templates.tool_formats.qwen3_coder import Qwen3Coder

TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": Hermes(),
    "llama3_json": Llama3Json(),
    "qwen3_coder": Qwen3Coder(),
    "call_token": CallToken(),
}
DEFAULT_TOOL_FORMAT = "hermes"

__all__ = ["DEFAULT_TOOL_FORMAT", "TOOL_FORMATS", "Reply", "ToolCall", "ToolFormat"]
