"""When does a prompt continue a conversation? Digests over a normal form, which survives how clients respell answers.

Clients send an answer back in a spelling of their own. Two messages count as the same when they say the same:

- arguments of a call are compared as JSON (spaces, order of members, `1.0` and `1`), and as text where they are none;
- null, "" and [] are equal, and so are a text and its text parts;
- `developer` is `system`, `function` is `tool`, and a legacy `function_call` is a tool call;
- white space at the ends of an answer's text does not count: clients were seen to trim it there, and only there; nor
  does a `</code>` at its end, where smolagents has models stop, and which it then adds;
- digits of a system prompt do not count: agents put the time there;
- every other member is left out (`name`, `index`, `refusal`, `reasoning_content`): some clients drop it, some add it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

import msgspec

from ratchet.core.rules.chat.format import LEGACY_ID

DIGEST_BYTES = 16
EMPTY = bytes(DIGEST_BYTES)
"""The digest of a conversation without messages."""

_ROLES = {"developer": "system", "function": "tool"}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_DIGITS = b"0123456789"
_WRITTEN_ID = re.compile(r"""['"]id['"]: ?['"]([^'"\\\s]{1,200})['"]""")
"""The id of a call in JSON, or as Python writes it."""
_STOP = "</code>"
_EXACT = 2**53
"""Whole floats below this are the same number as an integer."""
_UNREADABLE = (msgspec.DecodeError, RecursionError, OverflowError, UnicodeError, TypeError, ValueError)

_encode = msgspec.json.Encoder(order="deterministic").encode


def _number(text: str) -> float:
    """A float of some JSON; a whole one as an integer, as JavaScript writes it."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


_decode = msgspec.json.Decoder(float_hook=_number).decode


def extended(digest: bytes, message: Mapping[str, Any]) -> bytes:
    """The digest of a conversation with one more message; `digest` is of the messages before it.

    `Any`: agents send what they like. A message that is nested too deeply to be written has no normal form; only its
    role is compared.
    """
    try:
        form = normal_form(message)
    except _UNREADABLE:
        form = _encode([str(message.get("role"))[:64], "unreadable"])
    return hashlib.blake2b(digest + form, digest_size=DIGEST_BYTES).digest()


class Digested(list[dict[str, Any]]):
    """Messages with the digests that `prefix_digests` gives of them, made where making them keeps nothing waiting."""

    def __init__(self, messages: Sequence[dict[str, Any]]) -> None:
        super().__init__(messages)
        self.digests = prefix_digests(messages)


def prefix_digests(messages: Sequence[Mapping[str, Any]], digest: bytes = EMPTY) -> list[bytes]:
    """Digests of the first 0, 1, ... n messages, after those that `digest` is of."""
    if isinstance(messages, Digested) and digest == EMPTY:
        return messages.digests
    digests = [digest]
    for message in messages:
        digest = extended(digest, message)
        digests.append(digest)
    return digests


def answer_digest(message: Mapping[str, Any]) -> bytes:
    """The digest of an answer by itself: what stood before it does not count."""
    return extended(EMPTY, {"role": "assistant", **message})


def normal_form(message: Mapping[str, Any]) -> bytes:
    """What the message says, as JSON. Raises `RecursionError` and the like for one that has no JSON."""
    role = message.get("role")
    content = message.get("content")
    calls = message.get("tool_calls") or message.get("function_call")
    if isinstance(role, str):
        role = _ROLES.get(role, role)
    if not isinstance(content, str):
        content = _content(content) if content else ""
    if role == "system" and isinstance(content, str):
        content = content.encode().translate(None, _DIGITS).decode()
    if role != "assistant":
        return _encode([role, content, message.get("tool_call_id") or LEGACY_ID if role == "tool" else None])
    text = content.strip().removesuffix(_STOP).rstrip() if isinstance(content, str) else content
    return _encode([role, text, [_call(call) for call in tool_calls(message)] if calls else None])


def call_ids(message: Mapping[str, Any]) -> Iterator[str]:
    """The ids of tool calls that a message names: of the calls that it makes, or of the one that it answers."""
    answered = message.get("tool_call_id")
    if isinstance(answered, str):
        yield answered
    for call in tool_calls(message):
        if isinstance(call, dict):
            own = cast("dict[str, object]", call).get("id")
            if isinstance(own, str):
                yield own


def repeated_ids(message: Mapping[str, Any]) -> Iterator[str]:
    """The ids of tool calls by which a message of a prompt may repeat an answer.

    smolagents writes an answer's calls into its text, as `[{'id': 'call_...', ...}]`. Only the text of an assistant
    message says that the agent made them: a user's may quote the calls of another run.
    """
    yield from call_ids(message)
    if message.get("role") == "assistant" and not message.get("tool_calls"):
        content = message.get("content")
        text = content if isinstance(content, str) else _content(content)
        if isinstance(text, str) and ("'id'" in text or '"id"' in text):
            yield from _WRITTEN_ID.findall(text)


def open_calls(messages: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The tool calls that a prompt continues directly: nothing but their results follows the answer that made them."""
    ids: set[str] = set()
    for message in reversed(messages):
        role = message.get("role")
        is_result = isinstance(role, str) and role in {"tool", "function"}
        if is_result or role == "assistant":
            ids.update(call_ids(message))
        if not is_result:
            break
    return frozenset(ids)


def system_prompt_digest(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """The digest of a prompt's system prompt, in its normal form; `EMPTY` when it has none."""
    return prefix_digests(list(takewhile(is_system, messages)))[-1]


def is_system(message: Mapping[str, Any]) -> bool:
    """Whether a message is of the system prompt, where it stands before all others."""
    role = message.get("role")
    return isinstance(role, str) and role in {"system", "developer"}


def tool_calls(message: Mapping[str, Any]) -> list[object]:
    """The calls that a message makes, the legacy one too; each as the agent sent it."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return cast("list[object]", calls)
    legacy = message.get("function_call")
    return [{"id": LEGACY_ID, "function": legacy}] if legacy else []


def tools_called(answer: Mapping[str, Any]) -> frozenset[str]:
    """The names of the tools that an answer calls."""
    names: set[str] = set()
    for call in tool_calls(answer):
        called: object = cast("dict[str, Any]", call).get("function") if isinstance(call, dict) else None
        name = cast("dict[str, Any]", called).get("name") if isinstance(called, dict) else None
        names |= {name} if isinstance(name, str) else set()
    return frozenset(names)


def _call(call: object) -> object:
    """Id, name and arguments of a call; anything else as it is."""
    if not isinstance(call, dict):
        return call
    members = cast("dict[str, Any]", call)
    called = members.get(str(members.get("type") or "function"))
    if not isinstance(called, dict):
        return {name: value for name, value in members.items() if name != "index"}
    function = cast("dict[str, Any]", called)
    arguments = function.get("arguments", function.get("input"))
    return [members.get("id"), function.get("name"), _arguments(arguments)]


def _arguments(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        read = _decode(arguments)
        _encode(read)  # an integer of more than 64 bits is JSON that cannot be written again
    except _UNREADABLE:
        return arguments.strip() or {}
    return read


def _content(content: object) -> object:
    """Text parts as one text; other content as it is."""
    if not isinstance(content, list):
        return content
    parts = cast("list[object]", content)
    texts: list[str] = []
    for part in parts:
        members = cast("dict[str, object]", part) if isinstance(part, dict) else {"type": "text", "text": part}
        kind, text = members.get("type"), members.get("text")
        if not (isinstance(kind, str) and kind in _TEXT_PARTS and isinstance(text, str)):
            return parts
        texts.append(text)
    return "".join(texts)
