"""What may be said of an exception in a log line or a dead letter: its type, and where it was raised.

What people wrote and credentials pass through our variables, and authors of exceptions write them into their texts:
`ValueError(f"bad value {value}")`. Their texts are left out, but for errors of our own tree, the operating system's
words, and what this package raises itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

from ratchet.core.errors import RatchetError

LONGEST_REASON = 300
"""Characters of the message of an exception that is not ours."""

_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_QUOTED = re.compile(r"""['"`](?s:.*['"`])?""")
"""From the first quotation mark to the last: what is quoted may itself hold quotes, escaped or not."""
_LONG_NUMBER = re.compile(r"\d{5,}+")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the library has noticed of the broker, and that people should know."""

    key: str
    """The same for the same matter."""
    severity: str
    """`warning`, or `critical` where something is lost."""
    summary: str
    program: str
    """Which program noticed."""
    at: datetime


def failure(error: BaseException, mask: Callable[[str], str]) -> dict[str, str]:
    """An exception as members of a log line: no logger that gets them can show more.

    For code that also runs inside other programs, whose logging is theirs and may show the variables of every frame.
    """
    return {"error": type(error).__name__, "reason": reason_of(error, mask), "at": _place(error)}


def reason_of(error: BaseException, mask: Callable[[str], str]) -> str:
    """Why it was raised, in the words that may be shown; of an exception whose words may not, the place."""
    at = _place(error)
    if isinstance(error, RatchetError):
        return mask(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return mask(unquoted(str(error))[:LONGEST_REASON]) if at.startswith(_PACKAGE) else f"raised at {at}"


def _place(error: BaseException) -> str:
    return (frames(error.__traceback__) or ["an unknown place"])[-1]


def unquoted(text: str) -> str:
    """`text` without what stands in quotes and without long numbers: libraries quote the values they refuse."""
    return _LONG_NUMBER.sub("…", _QUOTED.sub("'…'", text, count=1))


def frames(traceback: TracebackType | None) -> list[str]:
    """`file:line in function`, outermost first."""
    return [f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}" for frame, line in walk_tb(traceback)]


def causes_of(error: BaseException, most: int = 3) -> list[BaseException]:
    """The exceptions that led to this one, nearest first."""
    causes: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(causes) < most:
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        causes += [current] if current is not None else []
    return causes
