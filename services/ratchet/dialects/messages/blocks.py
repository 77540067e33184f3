"""Content blocks as chat messages: what a user, a tool and an assistant say, and which tools the blocks offer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ratchet.core.errors import BadRequest
from ratchet.core.rules.chat.format import ChatError, json_object, json_text
from ratchet.dialects.requests import Body

Block = dict[str, Any]
"""A content block. `Any`: what an agent sent, read member by member."""
Placed = tuple[str, Block]
"""A content block after its place in the request, `messages.0.content.2`."""
INVALID = "INVALID_JSON"
"""The one member of a tool's input that holds arguments which are not JSON, as Anthropic's documentation advises."""
BILLING = "x-anthropic-billing-header"
"""Begins a system block of Claude Code that differs in each call and says nothing to a model."""
REFERENCE = "tool_reference"
"""Type of the part of a tool's result that names a tool, which the model may call from then on."""
CHANGES: Mapping[str, bool] = {"tool_addition": True, "tool_removal": False}
"""Types of a system message's blocks that name a tool -> whether the model may call it from then on."""
ERROR = "Error: "
"""Begins the result of a tool that failed: a chat has no other way to say so."""


@dataclass(slots=True)
class Obstacles:
    """What a chat completion cannot express of a request: only an engine that has the Messages API can take it."""

    first: tuple[str, str] | None = field(default=None)
    """Where it is, and why."""

    def add(self, path: str, why: str) -> None:
        """Remember it, unless there is one already."""
        self.first = self.first or (path, why)


def blocks_of(content: object, path: str) -> list[Placed]:
    """Content as blocks. Raises `BadRequest` unless it is text, or a list of objects with a type."""
    if isinstance(content, str):
        return [(path, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise BadRequest(f"{path} must be text or a list of content blocks", param=path)
    placed: list[Placed] = []
    for index, block in enumerate(cast("list[object]", content)):
        if not isinstance(block, dict) or not isinstance(cast("Block", block).get("type"), str):
            raise BadRequest(f"{path}.{index} must be a content block with a type", param=f"{path}.{index}")
        placed.append((f"{path}.{index}", cast("Block", block)))
    return placed


def text_member(value: Mapping[str, Any], name: str, path: str) -> str:
    """A member that must be text. Raises `BadRequest`."""
    text = value.get(name)
    if not isinstance(text, str):
        raise BadRequest(f"{path}.{name} must be text", param=f"{path}.{name}")
    return text


def object_member(value: Mapping[str, Any], name: str, path: str) -> Body:
    """A member that must be an object. Raises `BadRequest`."""
    member = value.get(name)
    if not isinstance(member, dict):
        raise BadRequest(f"{path}.{name} must be an object", param=f"{path}.{name}")
    return cast("Body", member)


def system_text(blocks: Sequence[Placed]) -> str:
    """The instructions as one text, without Claude Code's billing header. Raises `BadRequest`."""
    texts = [_change_text(block) or text_member(block, "text", path) for path, block in blocks]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING))


def user_messages(blocks: Sequence[Placed], obstacles: Obstacles) -> list[Body]:
    """The results of tools, then what the user says beside them, with the images of the results.

    Raises `BadRequest`.
    """
    results: list[Body] = []
    parts: list[Body] = []
    for here, block in blocks:
        if block["type"] == "tool_result":
            result, images = _tool_message(block, here, obstacles)
            results.append(result)
            parts += images
        else:
            parts += _parts(block, here, obstacles)
    return [*results, {"role": "user", "content": _content(parts)}] if parts or not results else results


def assistant_message(blocks: Sequence[Placed], obstacles: Obstacles) -> Body:
    """What a model said: its text, its reasoning and its calls. Blocks of other types stay parts of the content.

    Raises `BadRequest`.
    """
    parts: list[Body] = []
    thoughts: list[str] = []
    calls: list[Body] = []
    for here, block in blocks:
        kind = block["type"]
        if kind == "tool_use":
            calls.append(_tool_call(block, here))
        elif kind == "thinking":
            thoughts.append(text_member(block, "thinking", here))
        elif kind == "text":
            parts.append({"type": "text", "text": text_member(block, "text", here)})
        elif kind != "redacted_thinking":
            obstacles.add(here, f"content of type {kind} is known only to Anthropic's models")
            parts.append(block)
    only_text = all(part["type"] == "text" for part in parts)
    content = "".join(part["text"] for part in parts) if only_text else parts
    message: Body = {"role": "assistant", "content": content or (None if calls else "")}
    if thought := "".join(thoughts):
        message["reasoning_content"] = thought
    return message | ({"tool_calls": calls} if calls else {})


def tool_input(arguments: object) -> Body:
    """The input of a tool for a call's arguments: text that spells no object stands in the member `INVALID_JSON`."""
    if isinstance(arguments, dict):
        return cast("Body", arguments)
    text = arguments if isinstance(arguments, str) else "" if arguments is None else json_text(arguments)
    if not text.strip():
        return {}
    parsed = json_object(text.strip())
    return {INVALID: text} if parsed is None else parsed


def _content(parts: Sequence[Body]) -> str | list[Body]:
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else list(parts)


def _tool_message(block: Block, path: str, obstacles: Obstacles) -> tuple[Body, list[Body]]:
    call_id = text_member(block, "tool_use_id", path)
    content = block.get("content")
    inner = blocks_of("" if content is None else content, f"{path}.content")
    nested = [_parts(part, here, obstacles) for here, part in inner]
    parts = [part for read in nested for part in read]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.get("is_error") is True and not text.lower().startswith("error"):
        text = ERROR + text
    message = {"role": "tool", "tool_call_id": call_id, "content": text}
    return message, [part for part in parts if part["type"] != "text"]


def _change_text(block: Block) -> str | None:
    offers = CHANGES.get(block["type"])
    if offers is None:
        return None
    tool: Any = block.get("tool")
    named: Any = cast("Body", tool).get("definition", tool) if isinstance(tool, dict) else None
    name = cast("Body", named).get("name") if isinstance(named, dict) else None
    return f"The tool {name} is {'available now' if offers else 'no longer available'}."


def _tool_call(block: Block, path: str) -> Body:
    given = object_member(block, "input", path)
    invalid = given.get(INVALID)
    try:
        arguments = invalid if len(given) == 1 and isinstance(invalid, str) else json_text(given)
    except ChatError as error:
        raise BadRequest(f"{path}.input {error}", param=f"{path}.input") from error
    function = {"name": text_member(block, "name", path), "arguments": arguments}
    return {"id": text_member(block, "id", path), "type": "function", "function": function}


def _parts(block: Block, path: str, obstacles: Obstacles) -> list[Body]:
    match block["type"]:
        case "text":
            text = text_member(block, "text", path)
            return [{"type": "text", "text": text}] if text else []
        case "image":
            return _image(block, path, obstacles)
        case "document":
            return _document(block, path, obstacles)
        case "search_result":
            inner = blocks_of(block.get("content"), f"{path}.content")
            texts = [text_member(part, "text", place) for place, part in inner]
            head = f"{text_member(block, 'title', path)} ({text_member(block, 'source', path)})"
            return [{"type": "text", "text": "\n\n".join([head, *texts])}]
        case "tool_reference":
            return [{"type": "text", "text": f"The tool {text_member(block, 'tool_name', path)} is available now."}]
        case kind:
            obstacles.add(path, f"content of type {kind} is known only to Anthropic's models")
            return [block]


def _image(block: Block, path: str, obstacles: Obstacles) -> list[Body]:
    source = object_member(block, "source", path)
    here = f"{path}.source"
    match source.get("type"):
        case "base64":
            kind, image = text_member(source, "media_type", here), text_member(source, "data", here)
            url = f"data:{kind};base64,{image}"
        case "url":
            url = text_member(source, "url", here)
        case _:
            obstacles.add(here, "only Anthropic has its files: send the image as base64 or URL")
            return [block]
    return [{"type": "image_url", "image_url": {"url": url}}]


def _document(block: Block, path: str, obstacles: Obstacles) -> list[Body]:
    source = object_member(block, "source", path)
    here = f"{path}.source"
    heads = [text for name in ("title", "context") if isinstance(text := block.get(name), str) and text]
    match source.get("type"):
        case "text":
            return [{"type": "text", "text": "\n\n".join([*heads, text_member(source, "data", here)])}]
        case "content":
            inner = blocks_of(source.get("content"), f"{here}.content")
            nested = [_parts(part, place, obstacles) for place, part in inner if part["type"] in _FLAT]
            if len(nested) < len(inner):
                raise BadRequest(f"{here}.content may hold only text and images", param=f"{here}.content")
            return [*({"type": "text", "text": head} for head in heads), *(part for read in nested for part in read)]
        case "base64":
            kind, document = text_member(source, "media_type", here), text_member(source, "data", here)
            file = {"filename": heads[0] if heads else "document.pdf", "file_data": f"data:{kind};base64,{document}"}
            return [{"type": "file", "file": file}]
        case _:
            obstacles.add(here, "this model reads documents only as text or base64: send the document so")
            return [block]


_FLAT = ("text", "image")
"""What a document may hold: nothing that holds documents."""


@dataclass(slots=True)
class Offered:
    """What a conversation says about its tools. Those that wait until a search or a system message names them are not
    offered until then.

    Claude Code keeps most of its tools so (`defer_loading`): their names stand in a message, and its tool `ToolSearch`
    answers with a `tool_reference` for each one that the model may call from then on.
    """

    by_name: dict[str, bool] = field(default_factory=dict[str, bool])
    """Whether the last word about a tool offers it."""
    defined: list[tuple[str, Body]] = field(default_factory=list[tuple[str, Body]])
    """Tools that a system message defines, each after its place."""

    def includes(self, tool: Body) -> bool:
        """Whether the model is offered a tool of the request's list."""
        last = self.by_name.get(cast("str", tool.get("name")) if isinstance(tool.get("name"), str) else "")
        return tool.get("defer_loading") is not True if last is None else last


def offered_by(blocks: Iterable[Placed], obstacles: Obstacles) -> Offered:
    """Reads the blocks of a conversation, in order. Raises `BadRequest`."""
    offered = Offered()
    for path, block in blocks:
        if block["type"] == "tool_result":
            for name in _references(block.get("content")):
                offered.by_name[name] = True
        elif block["type"] in CHANGES:
            _change(offered, object_member(block, "tool", path), f"{path}.tool", obstacles, CHANGES[block["type"]])
    return offered


def _references(content: object) -> Sequence[str]:
    parts = cast("list[object]", content) if isinstance(content, list) else []
    refs = [cast("Body", part) for part in parts if isinstance(part, dict)]
    return [name for ref in refs if ref.get("type") == REFERENCE and isinstance(name := ref.get("tool_name"), str)]


def _change(offered: Offered, tool: Body, path: str, obstacles: Obstacles, offers: bool) -> None:
    match tool.get("type"):
        case "tool_reference":
            offered.by_name[text_member(tool, "name", path)] = offers
        case "tool_definition" if offers:
            definition = object_member(tool, "definition", path)
            offered.defined.append((f"{path}.definition", definition))
            offered.by_name[text_member(definition, "name", f"{path}.definition")] = True
        case str() as kind:
            obstacles.add(path, f"a tool of type {kind} is known only to Anthropic's models")
        case _:
            raise BadRequest(f"{path} must have a type", param=f"{path}.type")
