"""Shows a dead letter to people."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from ratchet.cli.deadletters import StoredLetter
from ratchet.cli.output import console, follow_up, print_facts
from ratchet.kernel.envelope import unseal
from ratchet.kernel.errors import InvalidMessage


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
    again = follow_up("deadletters", "replay", str(found.number), directory=directory)
    console.print(f"`{again}` sends it again", markup=False)


def readable(headers: dict[str, str], wire: bytes) -> str:
    """The body as indented JSON, else as the text that it is."""
    try:
        return msgspec.json.format(unseal(headers, wire), indent=2).decode()
    except (InvalidMessage, msgspec.DecodeError, UnicodeDecodeError):
        return wire.decode(errors="replace")
