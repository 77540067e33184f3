"""Compaction by a policy: a summary takes the place of what came before it, as Codex asks a provider for it.

An item `compaction_trigger` asks for it. The policy gets a message that asks for a summary, and its text becomes the
response's only item, a `compaction`, which later requests begin with. A provider encrypts that item's content. The
gateway writes the text itself, after `MARK`, so that it knows its own.
"""

from __future__ import annotations

from ratchet.core.contract import JsonObject
from ratchet.dialects.requests import Body
from ratchet.dialects.responses.chat_answers import Choice, Message
from ratchet.dialects.responses.items import COMPACTION, MARK, TRIGGER, input_items


def compacts(body: Body) -> bool:
    """Whether a (checked) request asks for a compaction."""
    return any(item.get("type") == TRIGGER for item in input_items(body))


class Compacted:
    """The output of a compaction: grows as `Output` does, and is one item in the end."""

    def __init__(self, response_id: str) -> None:
        self.items: list[JsonObject] = []
        self.finish_reason: str | None = None
        self._id = f"cmp_{response_id.partition('_')[2] or response_id}_0"
        self._pieces: list[str] = []

    def add(self, choice: Choice) -> list[JsonObject]:
        """Take in a chunk's choice, or the whole one; there are no events before the summary is whole."""
        message = choice.delta or choice.message or Message()
        self._pieces.append(message.content or "")
        self.finish_reason = choice.finish_reason or self.finish_reason
        return []

    def finish(self) -> list[JsonObject]:
        """The events of the item. An answer without text leaves the agent without an item: it fails, and says so."""
        summary = "".join(self._pieces).strip()
        if not summary:
            return []
        item: JsonObject = {"id": self._id, "type": COMPACTION, "encrypted_content": MARK + summary}
        self.items.append(item)
        kinds = ("response.output_item.added", "response.output_item.done")
        return [{"type": kind, "output_index": 0, "item": item} for kind in kinds]
