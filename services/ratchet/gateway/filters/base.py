"""What a filter is: a function from a text to a verdict, and what the filters by rules share."""

from __future__ import annotations

import html
import math
import re
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

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


class Rules(Protocol):
    """A filter by rules."""

    def __call__(self, text: str, until: float = math.inf) -> Verdict | None:
        """Raises `FilterFailed` where it is not done `until` then, by the monotonic clock."""
        ...


class FilterFailed(Exception):
    """A filter gave no verdict; the message says why."""


BEHIND, AHEAD = 160, 240
"""Characters around a mark in which its rule looks."""
PIECE, FOREIGN = 16 * 1024, 2 * 1024
"""Characters made plain at a time, of ASCII and of others: Python runs nothing else meanwhile."""
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\U000e0000-\U000e01ef]"
)
_TAGGED = re.compile("[\U000e0020-\U000e007e]+")
"""Characters without a shape that models read as letters."""
_SHOWN = {number: number - 0xE0000 for number in range(0xE0020, 0xE007F)}
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_NUMBER = re.compile("&#([0-9]{8,})")
"""Eight digits name no character any more, and Python reads no number of some thousand."""
_ATTRIBUTE = r"""(?: [\w:-]+=(?:"[^"<>\s]{0,200}"|'[^'<>\s]{0,200}'|[^"'<>\s]{1,200}))"""
_TAGS = re.compile(
    rf"</?(?:(br|div|h[1-6]|li|p|td|tr|ul)|a|b|code|em|font|i|mark|s|small|span|strong|tt|u){_ATTRIBUTE}{{0,9}} ?/?>",
    re.IGNORECASE,
)
"""Of HTML, without words of their own. Those in group 1 part words."""
_MARKDOWN = str.maketrans("*_`~", "    ")
_TWINS = str.maketrans("аеорсухіјѕһԁԛԝӏαονρτικ", "aeopcyxijshdqwlaovptik")
"""Letters of Cyrillic and Greek that look like Latin ones."""
_WORD, _LATIN = re.compile(r"[^\W\d_]+"), re.compile("[a-z]")
"""Only in a word with a Latin letter are others its twins."""


def plain(text: str, until: float = math.inf) -> str:
    """The text in small letters, as a reader sees it: without invisible characters, accents and marks of Markdown and
    HTML, with one blank for white space, with letters for their twins and for what JSON and HTML escape.

    What is written in characters of tags, which only models read, stands at the end of its piece.

    Raises `FilterFailed` for a text of several pieces that is not read `until` then, by the monotonic clock.
    """
    size = PIECE if text.isascii() else FOREIGN
    if len(text) <= size:
        return _plain(text)
    made = [""]
    for piece in _pieces(text, size):
        _stop_if_late(text, until)
        if piece[0].isspace() and not made[-1].endswith(" "):
            made.append(" ")
        if seen := _plain(piece):
            made.append(seen + " " * piece[-1].isspace())
    return "".join(made)


def _stop_if_late(text: str, until: float) -> None:
    if time.monotonic() > until:
        raise FilterFailed(f"a text of {len(text)} characters takes too long")


def _pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces that end behind a blank where one is near."""
    start = 0
    while start < len(text):
        end = start + size
        if end < len(text):
            end = max(text.rfind(blank, start, end) for blank in " \n") + 1 or end
        yield text[start:end]
        start = end


def _plain(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
        text = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), text)
    if "&" in text:
        text = html.unescape(_NUMBER.sub(lambda number: f"&#{number[1].lstrip('0')[:8]}", text))
    if "<" in text:
        text = _TAGS.sub(lambda tag: " " * bool(tag[1]), text)
    if not text.isascii():
        hidden = " ".join(_TAGGED.findall(text)).translate(_SHOWN)
        text = unicodedata.normalize("NFKD", _unmarked(_UNSEEN.sub("", text)))  # sorts marks: many take long
        text = unicodedata.normalize("NFKC", _unmarked(text)).lower()
        text = f"{_WORD.sub(_latin, text)} {hidden}"
    return " ".join(text.translate(_MARKDOWN).lower().split())


def _unmarked(text: str) -> str:
    """Without accents, and other marks that stand on a letter."""
    marks = [ord(letter) for letter in set(text) if unicodedata.category(letter)[0] == "M"]
    return text.translate(dict.fromkeys(marks)) if marks else text


def _latin(word: re.Match[str]) -> str:
    return word[0].translate(_TWINS) if _LATIN.search(word[0]) else word[0]


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

    def hits(self, seen: str, until: float = math.inf) -> Iterator[re.Match[str]]:
        """Where the rule holds in a plain text. Its time grows with the length of the text, whatever stands there.

        Raises `FilterFailed` for a text that is not searched `until` then, by the monotonic clock.
        """
        for mark in self.marks:
            at = seen.find(mark)
            while at >= 0:
                _stop_if_late(seen, until)
                if hit := self.compiled.search(seen, max(0, at - BEHIND), at + AHEAD):
                    yield hit
                at = seen.find(mark, at + AHEAD - BEHIND)
