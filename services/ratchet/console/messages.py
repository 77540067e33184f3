"""Messages of a conversation as pages show them: their text, shortened, and the calls of tools. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract import Feedback, Reward
from ratchet.core.contract.http.console import MessageOut, ToolCallOut
from ratchet.core.rules.chat import text_of

LETTERS = 20_000
"""Of a text; the whole one is asked for by itself."""
BUDGET = 1_000_000
"""Letters of all texts of an answer, after which each gets `FEW`."""
FEW = 1_000
TOOL_CALLS = 100
"""Of one message."""
NAME = 200
"""Letters of a name or an id."""

Answered = tuple[JsonObject, str | None]
"""A message, and the id of the call that it is the answer of."""


def messages_out(messages: Iterable[Answered], first: int = 0) -> list[MessageOut]:
    """Messages as a page shows them; the first one has the index `first`."""
    left = BUDGET
    shown: list[MessageOut] = []
    for index, (message, turn_id) in enumerate(messages, first):
        most = LETTERS if left > 0 else FEW
        shown.append(_message(message, turn_id, index, most))
        left -= len(shown[-1].text) + sum(len(call.arguments) for call in shown[-1].tool_calls)
    return shown


def whole_text(message: JsonObject) -> str:
    """All that a message says: its text, then its calls of tools."""
    calls = [f"{name}({arguments})" for _, name, arguments in _tool_calls(message)]
    return "\n".join(part for part in (_text(message.get("content")), *calls) if part)


def reward_out(reward: Reward) -> Reward:
    """A reward without raw data, its reasons shortened."""
    parts = {
        name: msgspec.structs.replace(part, raw_data=None, reasoning=part.reasoning and part.reasoning[:LETTERS])
        for name, part in reward.reward_components.items()
    }
    return msgspec.structs.replace(reward, reward_components=parts, turn_rewards=None)


def feedback_out(feedback: Feedback) -> Feedback:
    """Feedback with a shortened text."""
    value = feedback.value
    return msgspec.structs.replace(feedback, value=value[:LETTERS] if isinstance(value, str) else value)


def object_out(value: object) -> JsonObject | None:
    """A value as JSON with shortened texts."""
    plain = msgspec.to_builtins(value)
    return cast("JsonObject", _shortened(plain)) if plain is not None else None


def _message(message: JsonObject, turn_id: str | None, index: int, most: int) -> MessageOut:
    text = _text(message.get("content"))
    calls = [
        ToolCallOut(id=_named(id_) or None, name=_named(name), arguments=arguments[:most], letters=len(arguments))
        for id_, name, arguments in _tool_calls(message)[:TOOL_CALLS]
    ]
    return MessageOut(
        index=index,
        role=_named(message.get("role")) or "unknown",
        text=text[:most],
        letters=len(text),
        tool_calls=calls,
        tool_call_id=_named(message.get("tool_call_id")) or None,
        turn_id=turn_id,
    )


def _tool_calls(message: JsonObject) -> list[tuple[object, object, str]]:
    """Id, name and arguments of each call of a tool."""
    listed = message.get("tool_calls")
    calls = [cast("JsonObject", call) for call in listed if isinstance(call, dict)] if isinstance(listed, list) else []
    named_calls: list[tuple[object, object, str]] = []
    for call in calls:
        function = call.get("function")
        named = cast("JsonObject", function) if isinstance(function, dict) else call
        named_calls.append((call.get("id"), named.get("name"), _text(named.get("arguments"))))
    return named_calls


def _text(content: object) -> str:
    """The text of a content; parts that are none stand as their kind, any other value as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        parts = [cast("JsonObject", part) for part in content]
        return "".join(
            text_of([part]) if isinstance(part.get("text"), str) else f"[{_named(part.get('type')) or 'part'}]"
            for part in parts
        )
    return msgspec.json.encode(content).decode()


def _named(value: object) -> str:
    return value[:NAME] if isinstance(value, str) else ""


def _shortened(value: object) -> object:
    if isinstance(value, str):
        return value[:LETTERS]
    if isinstance(value, list):
        return [_shortened(member) for member in cast("Sequence[object]", value)[:TOOL_CALLS]]
    if isinstance(value, dict):
        return {
            name[:NAME]: _shortened(member)
            for name, member in [*cast("Mapping[str, object]", value).items()][:TOOL_CALLS]
        }
    return value
