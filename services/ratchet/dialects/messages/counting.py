"""How many tokens a request has: what an engine is asked that can tell, and an estimate for those that cannot."""

from __future__ import annotations

import math
from typing import Any, cast

from ratchet.core.errors import BadRequest
from ratchet.core.rules.chat.format import ChatError, json_text
from ratchet.dialects.messages.reading import MessagesRequest, to_chat
from ratchet.dialects.requests import Body

BYTES_A_TOKEN = 4
"""Of text and JSON in UTF-8: about what the tokenizers of today's models take for English and for code."""
MEDIUM_TOKENS = 1_600
"""Of an image or a file, whatever its size: what Anthropic counts for an image at its largest."""
MESSAGE_TOKENS = 4
"""Of the marks around a message."""


def count_body(request: MessagesRequest, model: str) -> Body:
    """The request to an engine's `/tokenize` (vLLM, engine_local): the prompt that an answer would follow.

    Raises `BadRequest` for what a chat completion cannot express.
    """
    chat = to_chat(request)
    asked = {name: chat[name] for name in ("messages", "tools", "chat_template_kwargs") if name in chat}
    return {"model": model, **asked, "add_generation_prompt": True}


def count_of(answer: object, member: str) -> int | None:
    """The number that an engine answered; None where it answered something else."""
    count = cast("Body", answer).get(member) if isinstance(answer, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def estimate(chat: Body) -> int:
    """About how many tokens a chat's prompt has, at least 1: a token for each 4 bytes of its messages and tools, 4 for
    each message, and 1,600 for each image or file. Raises `BadRequest` for what is nested too deeply."""
    media = 0
    messages: list[Body] = []
    for message in cast("list[Body]", chat["messages"]):
        content: Any = message.get("content")
        if isinstance(content, list):
            texts = [part for part in cast("list[Body]", content) if part.get("type") == "text"]
            media += len(content) - len(texts)
            message = {**message, "content": texts}  # noqa: PLW2901 - the message without what is no text
        messages.append(message)
    try:
        size = len(json_text([messages, chat.get("tools") or []]).encode())
    except ChatError as error:
        raise BadRequest(f"the request {error}") from error
    return math.ceil(size / BYTES_A_TOKEN) + MESSAGE_TOKENS * len(messages) + MEDIUM_TOKENS * media
