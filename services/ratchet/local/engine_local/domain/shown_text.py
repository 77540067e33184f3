"""What can be shown of an answer while its tokens come: always the beginning of what the whole answer will show.

Text flows through filters, each of which holds back what later text may still change: a character whose bytes are
not all there, the beginning of a stop text, everything from the beginning of a tool call on, the beginning of a control
token. Held back is only what must be, so that the rest reaches the reader at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ratchet.core.chat_templates.control_tokens import ControlTokens

UNKNOWN = "\ufffd"
"""How a decoder writes bytes that are no character: also those of a character that is not complete yet."""
WINDOW = 32
"""Tokens after which a place is looked for where the text can be cut, though it does not end with a whole character."""
LONGEST_CHARACTER = 4
"""Bytes of UTF-8; a token has at least one."""

Decode = Callable[[Sequence[int]], str]


class TextFilter(Protocol):
    """Text goes in by pieces, and comes out as far as what follows cannot change it."""

    def add(self, text: str) -> str:
        """What may be passed on now."""
        ...


def held_from(text: str, words: Sequence[str]) -> int:
    """Where `text` may have begun one of `words`: the place of its longest end that is the beginning of one."""
    longest = max(map(len, words), default=0)
    first = {word[0] for word in words}
    for place in range(max(0, len(text) - longest + 1), len(text)):
        if text[place] in first and any(word.startswith(text[place:]) for word in words):
            return place
    return len(text)


class Detokenizer:
    """Token ids to text, token by token, at a cost that does not grow with the answer.

    It decodes a window of the newest tokens that begins at the begin of a character. Tokens that are single bytes of a
    decoder with byte fallback wait for the end of their run: one wrong byte changes how all of the run is written.
    """

    def __init__(self, decode: Decode, is_lone_byte: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_lone_byte = is_lone_byte
        self._window: list[int] = []
        self._known = 0
        """Tokens at the window's begin that were shown, kept because decoders treat the first token differently."""
        self._shown = 0
        """Characters of the window that were shown."""

    def add(self, token: int) -> str:
        """The text that is certain with this token."""
        self._window.append(token)
        if self._is_lone_byte(token):
            return ""
        text = self._decode(self._window)
        whole = not text.endswith(UNKNOWN)
        certain = len(text) if whole else len(text) - 1
        piece = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        if whole:
            self._cut(len(self._window))
        elif len(self._window) - self._known > WINDOW:
            self._cut_inside(text)
        return piece

    def _cut(self, place: int) -> None:
        """Let go of the tokens before those that were not known yet; the window's first `place` are known now."""
        kept = self._window[self._known : place]
        dropped = len(self._decode(self._window[:place])) - len(self._decode(kept))
        self._window = self._window[self._known :]
        self._known = len(kept)
        self._shown -= dropped

    def _cut_inside(self, text: str) -> None:
        """Cut where a character begins: there both sides decode by themselves to what they are together."""
        last = len(self._window) - LONGEST_CHARACTER
        for place in range(last, last - LONGEST_CHARACTER, -1):
            if self._decode(self._window[:place]) + self._decode(self._window[place:]) == text:
                self._cut(place)
                return


class UntilWords:
    """Holds back what may become one of some texts."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._held = ""

    def add(self, text: str) -> str:
        text = self._held + text
        place = held_from(text, self._words)
        self._held = text[place:]
        return text[:place]


class WithoutControl:
    """A text without control tokens: holds back what may become one."""

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._held = ""

    def add(self, text: str) -> str:
        text = self._control.without(self._held + text)
        place = held_from(text, self._control.texts)
        self._held = text[place:]
        return text[:place]


class BeforeCalls:
    """Passes on what stands before the first tool call, and nothing from there on."""

    def __init__(self, openings: Sequence[str], *, keeps_space: bool) -> None:
        """`openings`: what may begin a call; `keeps_space`: white space before it is content."""
        self._openings = openings
        self._keeps_space = keeps_space
        self._held = ""
        self._over = False

    def add(self, text: str) -> str:
        if self._over:
            return ""
        text = self._held + text
        places = [place for opening in self._openings if (place := text.find(opening)) >= 0]
        self._over = bool(places)
        content = text[: min(places, default=held_from(text, self._openings))]
        content = content if self._keeps_space else content.rstrip()
        self._held = text[len(content) :]
        return content


class ShownText:
    """The text of one choice as far as it can be shown."""

    def __init__(self, tokens: Detokenizer, filters: Sequence[TextFilter]) -> None:
        self._tokens = tokens
        self._filters = filters
        self._shown: list[str] = []

    def add(self, token: int) -> str:
        """What can be shown more with this token."""
        piece = self._tokens.add(token)
        for text_filter in self._filters:
            piece = text_filter.add(piece) if piece else ""
        if piece:
            self._shown.append(piece)
        return piece

    def rest(self, whole: str) -> str:
        """What is left to show of the whole text. Raises `ValueError` when it begins otherwise than what was shown."""
        shown = "".join(self._shown)
        if not whole.startswith(shown):
            raise ValueError("the whole text does not begin with what was streamed")
        return whole[len(shown) :]
