"""Messages that could not be handled: what people see of them, and where the rest is."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from ratchet.bus.message import Message, named_id

LARGEST_KEPT = 8 * 1024
"""Bytes of a body that a dead letter keeps: a few large ones must not push many others out of their stream, and to take
the secrets out of 60 KB costs 18 ms of a processor, which a flood of letters would take from messages that can be read.
"""
KEPT_OF_BATCH = 128 * 1024
"""Bytes of bodies that the dead letters of one batch keep together: a flood of them is searched in little time, too."""
LARGEST_HEADERS = 2 * 1024
"""Bytes of headers that a dead letter keeps; with more it keeps none of the message."""
WHOLE, REDACTED, IN_STREAM = "whole", "redacted", "in_stream"


class DeadLetter(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be handled, as people may see it, and where it stands: one for all its consumers.

    A product gives it a topic of its own, whose subjects end in `<stream>.<reason>`, and names it in its registry.
    """

    stream: Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,64}$")]
    sequence: Annotated[int, Meta(ge=0)]
    consumer: Annotated[str, Meta(min_length=1)]
    """Durable consumer that gave up first."""
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
    """What is kept of the body, base64."""
    kept: Annotated[str, Meta(extra_json_schema={"enum": [WHOLE, REDACTED, IN_STREAM]})] = WHOLE
    """`whole`: headers and body are those of the message; `redacted`: secrets were taken out of them; `in_stream`: the
    body stands in its stream alone, for it is large, or many messages were given up at once."""
    stored_at: datetime | None = None
    """When its stream stored the message: with the sequence it says which one this is."""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.stream}.{self.reason}"

    @property
    def event_id(self) -> str:
        """One for each message, whichever consumer gives it up."""
        return named_id(self.TOPIC, self.stream, self.sequence, self.stored_at)


L = TypeVar("L", bound=DeadLetter)


def with_message(
    letter: L, headers: Mapping[str, str], body: bytes, plain: bytes | None, redact: Callable[[str], str]
) -> L:
    """The dead letter with what it keeps of its message; `plain`: the unpacked body, None where that is large."""
    shown: dict[str, str] = json.loads(redact(json.dumps(dict(headers))))  # a header's name tells a secret, too
    if plain is None:
        return replace(letter, headers=shown, kept=IN_STREAM)
    text = plain.decode(errors="replace")
    redacted = redact(text)
    if redacted == text and shown == headers:
        return replace(letter, headers=shown, body=base64.b64encode(body).decode())
    shown.pop("content-encoding", None)
    kept = base64.b64encode(redacted.encode(errors="replace")).decode()
    return replace(letter, headers=shown, body=kept, kept=REDACTED)
