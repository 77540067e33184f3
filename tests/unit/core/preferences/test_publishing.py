"""New preferences are published, known ones are not sent again, and one that is refused holds up no other."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.contract import Message, Preference, named_id
from ratchet.core.errors import InvalidMessage
from ratchet.core.preferences.publishing import Published, publish


class Shelf:
    """A sink that knows what it was given, and refuses some."""

    def __init__(self, refuses: frozenset[str] = frozenset()) -> None:
        self.kept: dict[str, Message] = {}
        self.refuses = refuses

    async def publish_all(self, messages: Sequence[Message]) -> None:
        if any(message.event_id in self.refuses for message in messages):
            raise InvalidMessage("too large")
        self.kept.update({message.event_id: message for message in messages})

    async def known(self, ids: Sequence[str]) -> frozenset[str]:
        return frozenset(self.kept) & frozenset(ids)


def pairs(number: int) -> list[Preference]:
    return [
        Preference(preference_id=named_id(n), prompt="p", chosen=f"{n}", rejected="no", source="human")
        for n in range(number)
    ]


async def test_publishing_twice_changes_nothing() -> None:
    shelf, first, second = Shelf(), Published(), Published()
    await publish(shelf, shelf.known, pairs(250), first)
    assert (first.published, first.present, len(shelf.kept)) == (250, 0, 250)
    await publish(shelf, shelf.known, pairs(251), second)
    assert (second.published, second.present, len(shelf.kept)) == (1, 250, 251)


async def test_one_that_is_refused_is_named_and_the_others_go_out() -> None:
    shelf, done = Shelf(refuses=frozenset({named_id(3)})), Published()
    await publish(shelf, shelf.known, pairs(8), done)
    assert (done.published, len(shelf.kept)) == (7, 7)
    assert [(one.preference_id, one.reason) for one in done.refused] == [(named_id(3), "/: too large")]
