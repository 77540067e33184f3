"""A bundle in words: a line for each part of it, and how two bundles differ, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import unified_diff

import msgspec

from ratchet.core.contract.bundle import PREPEND, REPLACE, Bundle, Instructions, ToolTexts
from ratchet.core.rules.bundles import model_name


class Part(msgspec.Struct, frozen=True):
    """What a bundle changes in one place."""

    words: str
    text: str = ""
    """What the model reads there, in full."""


class Change(msgspec.Struct, frozen=True):
    """A part that two bundles have differently."""

    part: str
    words: str
    """What became of it, in a line."""
    diff: tuple[str, ...]
    """Of its texts, line by line, as `diff -u` writes it."""


def parts_of(bundle: Bundle) -> Mapping[str, Part]:
    """The parts of a bundle by name, in the order in which a request shows them; none of one that changes nothing."""
    return dict(_parts(bundle))


def changes(before: Bundle, after: Bundle) -> list[Change]:
    """The parts that differ; none where both do the same."""
    old, new = parts_of(before), parts_of(after)
    names = dict.fromkeys((*old, *new))
    return [_change(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _parts(bundle: Bundle) -> Iterator[tuple[str, Part]]:
    if bundle.model is not None:
        yield "model", Part(model_name(bundle))
    if bundle.instructions is not None:
        yield "instructions", Part(_standing(bundle.instructions), bundle.instructions.text)
    for name, tool in sorted(bundle.tools.items()):
        yield f"tool {name}", _tool(tool)
    if bundle.examples:
        dialogue = "\n".join(f"{example.role}: {example.content}" for example in bundle.examples)
        yield "examples", Part(f"{len(bundle.examples)} messages after the instructions", dialogue)
    for when, values in (("unless the agent sets it", bundle.defaults), ("whatever the agent sets", bundle.overrides)):
        given: dict[str, object] = msgspec.to_builtins(values) if values is not None else {}
        for name, value in given.items():
            yield f"{name} {when}", Part(str(value))
    if bundle.response_format is not None:
        shape = msgspec.json.format(msgspec.json.encode(bundle.response_format, order="sorted"), indent=2)
        yield "response format", Part(str(bundle.response_format.get("type")), shape.decode())


def _standing(instructions: Instructions) -> str:
    """How the instructions stand to the agent's, and what they need."""
    where = {REPLACE: "in the place of", PREPEND: "before"}.get(instructions.mode, "after")
    needs = f"; need {', '.join(instructions.variables)} of the request" if instructions.variables else ""
    return f"{where} the agent's{needs}"


def _tool(tool: ToolTexts) -> Part:
    if tool.hidden:
        return Part("hidden from the model")
    described = ["the tool"] if tool.description is not None else []
    words = (
        f"describes {', '.join([*described, *sorted(tool.parameters)])}" if described or tool.parameters else "as is"
    )
    parameters = [f"{name}: {text}" for name, text in sorted(tool.parameters.items())]
    return Part(words, "\n".join([*([] if tool.description is None else [tool.description]), *parameters]))


def _change(name: str, old: Part | None, new: Part | None) -> Change:
    if old is None or new is None:
        words = f"added: {new.words}" if new is not None else "removed"
    else:
        words = new.words if old.words == new.words else f"{old.words} -> {new.words}"
    before, after = (part.text if part is not None else "" for part in (old, new))
    if before == after:
        return Change(name, words, ())
    lines = tuple(unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm=""))
    more, fewer = (sum(line.startswith(sign) for line in lines[2:]) for sign in "+-")
    counted = f"+{more} -{fewer} lines" if lines else "only line ends differ"
    return Change(name, f"{words} ({counted})", lines)
