"""A text without control tokens, by pieces."""

from __future__ import annotations

from ratchet.core.chat_templates.control_tokens import ControlTokens
from ratchet.local.engine_local.domain.shown_text import held_from


class WithoutControl:
    """A text without control tokens, by pieces: holds back what may become one."""

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._held = ""

    def add(self, text: str) -> str:
        """See `TextFilter.add`."""
        text = self._control.without(self._held + text)
        place = held_from(text, self._control.texts)
        self._held = text[place:]
        return text[:place]
