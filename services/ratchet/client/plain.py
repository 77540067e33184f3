"""Values of an agent as plain JSON."""

from __future__ import annotations

from typing import Any

import msgspec


def plain(value: Any) -> Any:
    """A deep copy of `value` as JSON has it. What JSON has no form for becomes its text.

    `Any` on both sides: agents hand over whatever they have. Raises what msgspec raises for keys that are no text.
    """
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))
