"""Which tools a model is offered: those that wait until a search or a system message names them are not, until then.

Claude Code keeps most of its tools so (`defer_loading`): their names stand in a message, and its tool `ToolSearch`
answers with a `tool_reference` for each one that the model may call from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from ratchet.core.errors import BadRequest
from ratchet.dialects.messages.blocks import (
    CHANGES,
    REFERENCE,
    Obstacles,
    Placed,
    object_member,
    text_member,
)
from ratchet.dialects.requests import Body


@dataclass(slots=True)
class Offered:
    """What a conversation says about its tools."""

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
    """The tools that a search has found."""
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
