"""Shows a dead letter to people."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ratchet.bus.envelope import unseal
from ratchet.cli.deadletters import Replayed, StoredLetter, complaint
from ratchet.cli.output import console, follow_up, print_facts
from ratchet.errors import InvalidMessage
from ratchet.service.contracts import load_contracts


def show_letter(found: StoredLetter, directory: Path) -> None:
    """What it was, why it died, and its body as far as it can be read."""
    letter = found.letter
    print_facts(
        {
            "number": found.number,
            "at": letter.at,
            "stream": letter.stream,
            "sequence": letter.sequence,
            "consumer": letter.consumer,
            "subject": letter.original_subject,
            "reason": letter.reason,
            "detail": letter.detail,
            "header": letter.headers,
        }
    )
    console.print(f"\n{readable(letter.headers, base64.b64decode(letter.body))}\n", markup=False)
    why = complaint(load_contracts(), letter.original_subject, letter.headers, base64.b64decode(letter.body))
    again = follow_up("deadletters", "replay", str(found.number), directory=directory)
    if why is None:
        console.print(f"`{again}` sends it again", markup=False)
    else:
        gone = follow_up("deadletters", "drop", str(found.number), directory=directory)
        console.print(f"It cannot be replayed as it is ({why}); `{gone}` deletes it", markup=False)


def show_replayed(done: Sequence[Replayed]) -> None:
    """How many messages were sent again, and why others were not."""
    for one in done:
        if one.refused is not None:
            console.print(f"dead letter {one.number} was not sent: {one.refused}", markup=False)
    sent = [one for one in done if one.refused is None]
    if len(done) == 1 and sent:
        console.print(f"dead letter {sent[0].number} was sent again on {sent[0].subject}", markup=False)
    else:
        console.print(f"{len(sent)} of {len(done)} dead letters were sent again", markup=False)


def readable(headers: dict[str, str], wire: bytes) -> str:
    """The body as indented JSON, else as the text that it is."""
    try:
        return msgspec.json.format(unseal(headers, wire), indent=2).decode()
    except (InvalidMessage, msgspec.DecodeError, UnicodeDecodeError):
        return wire.decode(errors="replace")
