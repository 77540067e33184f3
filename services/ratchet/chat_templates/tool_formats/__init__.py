"""Tool-call formats by the name that a tokenizer's config gives in `ratchet_tool_format`."""

from ratchet.chat_templates.tool_formats.base import Reply, ToolCall, ToolFormat
from ratchet.chat_templates.tool_formats.call_token import CallToken
from ratchet.chat_templates.tool_formats.hermes import Hermes

TOOL_FORMATS: dict[str, ToolFormat] = {"call_token": CallToken(), "hermes": Hermes()}
DEFAULT_TOOL_FORMAT = "hermes"

__all__ = ["DEFAULT_TOOL_FORMAT", "TOOL_FORMATS", "Reply", "ToolCall", "ToolFormat"]
