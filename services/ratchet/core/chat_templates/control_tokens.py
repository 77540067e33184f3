"""Control tokens that users and tools wrote as text, kept apart from those of a template or the policy itself."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Any, cast

from ratchet.bus.message import JsonObject
from ratchet.core.errors import BadRequest

MARKS = range(0xF0000, 0xFFFFE)
"""Characters for private use; one of them stands for each control token that was written as text."""


class ControlTokens:
    """The texts that a tokenizer reads as control tokens; only templates and the policy itself may write them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.texts = sorted({token for token in tokens if token}, key=len, reverse=True)
        self.longest = max(map(len, self.texts), default=0)
        self._endings = tuple(self.texts)
        self._pattern = re.compile("|".join(map(re.escape, self.texts))) if self.texts else None

    def within(self, text: str) -> bool:
        """Whether `text` contains one."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def without(self, text: str) -> str:
        """`text` with each taken out as soon as it is complete, also those that come about by taking one out."""
        if not self.within(text):
            return text
        kept = ""
        for character in text:
            kept += character
            if kept.endswith(self._endings):
                kept = kept[: -len(next(token for token in self.texts if kept.endswith(token)))]
        return kept

    def plain_spans(self, text: str) -> Iterator[tuple[int, int]]:
        """The parts of `text` between them, as (begin, end)."""
        begin = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            yield begin, match.start()
            begin = match.end()
        yield begin, len(text)


class Marks:
    """Stand-ins for the control tokens in some texts, so that a template can be filled without their taking effect."""

    def __init__(self, control: ControlTokens, value: object) -> None:
        """`value`: everything that will be rendered, for marks that occur nowhere in it. Raises `BadRequest`."""
        texts = "\0".join(_texts(value))
        try:
            texts.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair: JSON can spell one, and no tokenizer takes it
            raise BadRequest("the messages hold text that is no Unicode", code="invalid_text") from error
        free = (chr(code) for code in MARKS if chr(code) not in texts)
        self._marks = dict(zip((token for token in control.texts if token in texts), free, strict=False))
        if any(token in texts and token not in self._marks for token in control.texts):
            raise BadRequest("the messages use every character for private use", code="control_token")
        self._meant = {mark: token for token, mark in self._marks.items()}
        self._pattern = re.compile(f"([{''.join(self._meant)}])") if self._meant else None

    def hide(self, value: Any, but: Container[str] = ()) -> Any:
        """`value` with a mark for every control token in its texts, except for those in `but`. `Any`: JSON."""
        if not self._marks:
            return value  # usual, and a walk through all tools of a conversation
        if isinstance(value, str):
            for token, mark in self._marks.items():
                value = value if token in but else value.replace(token, mark)
            return value
        if isinstance(value, dict):
            members = cast("JsonObject", value)
            return {self.hide(name, but): self.hide(part, but) for name, part in members.items()}
        if isinstance(value, list):
            return [self.hide(item, but) for item in cast("list[object]", value)]
        return value

    def parts(self, rendered: str) -> list[tuple[str, bool]]:
        """What a template made of hidden texts, in parts: each text, and whether it is a hidden control token's."""
        if self._pattern is None:
            return [(rendered, False)]
        return [(self._meant.get(part, part), part in self._meant) for part in self._pattern.split(rendered) if part]


def _texts(value: object) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in cast("JsonObject", value).items():
            yield name
            yield from _texts(part)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _texts(item)
