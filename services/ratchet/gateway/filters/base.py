"""What a filter is: a function from a text to a verdict, and what the filters by rules share."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

FLAG, REPLACE, BLOCK = ACTIONS = ("flag", "replace", "block")


class Verdict(msgspec.Struct, frozen=True):
    """What a filter says of a text that should not pass as it is."""

    action: Literal["flag", "replace", "block"]
    """Label it; give `replacement` in its place; or refuse the call."""
    reason: str
    """What is wrong with it, in a few words: labels have them, and the agent's error where the call is refused."""
    replacement: str = ""
    """Of `replace`: the text in its place."""


Filter = Callable[[str], Verdict | None]
"""None: the text may pass. It may be asked again of the same text, and of the last part of an answer that streams."""


class FilterFailed(Exception):
    """A filter gave no verdict; the message says why."""


BEHIND, AHEAD = 160, 240
"""Characters around a mark in which its rule looks."""
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]"
)
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_MARKDOWN = str.maketrans("*_`~", "    ")


def plain(text: str) -> str:
    """The text in small letters, as a reader sees it: without invisible characters, with one blank for white space and
    for marks of Markdown, with letters for their full-width twins and for what JSON escapes."""
    if "\\" in text:
        text = text.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
        text = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), text)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _UNSEEN.sub("", text))
    return " ".join(text.translate(_MARKDOWN).lower().split())


@dataclass(frozen=True)
class Rule:
    """A pattern over plain text, tried only around its marks: most texts hold none, and are searched no further."""

    reason: str
    marks: tuple[str, ...]
    """Of which one stands in whatever the pattern matches, at most `BEHIND` after its start."""
    pattern: str
    compiled: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", re.compile(self.pattern))

    def hits(self, seen: str) -> Iterator[re.Match[str]]:
        """Where the rule holds in a plain text. Its time grows with the length of the text, whatever stands there."""
        for mark in self.marks:
            at = seen.find(mark)
            while at >= 0:
                if hit := self.compiled.search(seen, max(0, at - BEHIND), at + AHEAD):
                    yield hit
                at = seen.find(mark, at + AHEAD - BEHIND)
