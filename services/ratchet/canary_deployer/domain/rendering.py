"""Whether recorded requests can be rendered with a bundle: its variables are there, and agents offer its tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ratchet.bus.message import JsonObject
from ratchet.core.contract.bundle import Bundle
from ratchet.core.rules.bundles import MissingVariable, template_of


def lacking(bundle: Bundle, metadata: Mapping[str, JsonObject]) -> str | None:
    """What requests lack that the instructions need, with the turn of one of them; None where nothing is missing.

    `metadata`: that of requests, by their turns.
    """
    if bundle.instructions is None:
        return None
    template = template_of(bundle.instructions)
    problems: dict[str, str] = {}
    for turn_id, given in metadata.items():
        try:
            template.expanded("", given)
        except MissingVariable as error:
            problems[turn_id] = str(error)
    if not problems:
        return None
    turn_id, why = next(iter(problems.items()))
    return f"turn {turn_id}: {why}; so it is with {len(problems)} of {len(metadata)} recorded requests"


def unknown_tools(bundle: Bundle, offered: Sequence[Sequence[JsonObject]]) -> list[str]:
    """The tools of a bundle that none of these requests offers."""
    known = {_name_of(tool) for tools in offered for tool in tools}
    return sorted(name for name in bundle.tools if name not in known)


def _name_of(tool: JsonObject) -> object:
    function: Any = tool.get("function")
    return (cast("JsonObject", function) if isinstance(function, dict) else tool).get("name")
