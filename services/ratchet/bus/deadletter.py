"""Messages that could not be handled, kept whole."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from ratchet.bus.message import Message, named_id

PART_BYTES = 4 * 1024 * 1024
"""A larger body is kept in several dead letters: base64 of one must fit into a message."""


class DeadLetter(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be handled, kept whole so that it can be looked at and replayed.

    A product gives it a topic of its own, whose subjects end in `<stream>.<reason>`, and names it in its registry.
    """

    stream: Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,64}$")]
    sequence: Annotated[int, Meta(ge=0)]
    consumer: Annotated[str, Meta(min_length=1)]
    """Durable consumer that gave up."""
    original_subject: Annotated[str, Meta(min_length=1)]
    """Subject it was published on."""
    reason: Annotated[
        str, Meta(examples=["invalid", "undecodable", "rejected", "exhausted"], pattern=r"^[a-z0-9_]{1,64}$")
    ]
    """A token: `invalid`, `undecodable`, `rejected`, `exhausted`."""
    detail: str
    at: datetime
    """When it was given up."""
    headers: dict[str, str]
    body: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
    """The original body, or this part of it, base64."""
    part: Annotated[int, Meta(ge=1)] | None = None
    """Which part of the body this dead letter holds, 1 for the first; absent when it holds all of it."""
    parts: Annotated[int, Meta(ge=2)] | None = None
    """Number of dead letters that the body is split over."""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.stream}.{self.reason}"

    @property
    def event_id(self) -> str:
        later = (self.part,) if self.part is not None and self.part > 1 else ()
        return named_id(self.TOPIC, self.stream, self.sequence, self.consumer, *later)


L = TypeVar("L", bound=DeadLetter)


def with_body(letter: L, body: bytes) -> Sequence[L]:
    """The dead letter with its body; a body too large for one message is split over several dead letters."""
    pieces = [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)] or [b""]
    encoded = [base64.b64encode(piece).decode() for piece in pieces]
    if len(encoded) == 1:
        return [replace(letter, body=encoded[0])]
    return [replace(letter, body=piece, part=number, parts=len(encoded)) for number, piece in enumerate(encoded, 1)]
