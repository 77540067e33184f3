"""What every message has in common: a topic, a subject, a deterministic event id, and its JSON form."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from hashlib import sha1
from typing import Any, ClassVar, TypeVar, overload

import msgspec

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ratchet")
"""Root of all name-based ids, so that the same logical event has the same id wherever it is made."""

_PLACE = re.compile(r" - at `(?:key` in `)?(\$[^`']*)`$")
_OF_THE_TYPE = re.compile(
    "Expected `|Object missing required field `|Number out of range|Invalid (?:RFC3339|UUID|base64)",
)
"""What msgspec says of a type alone. The rest quotes a value, or is the text of a type's own check."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An immutable part of a message. Unknown members are ignored when decoding (the open view)."""


class Message(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A message with a topic. `subject` says where it is published, `event_id` which event it is."""

    TOPIC: ClassVar[str]

    @property
    def subject(self) -> str:
        """The subject this message is published on."""
        return self.TOPIC

    @property
    def event_id(self) -> str:
        """The same logical event always has the same id."""
        return named_id(self.TOPIC, encode(self).decode())

    @property
    def repetition_id(self) -> str:
        """The broker's deduplication key: within its window it drops a second message of the same one.

        The event's id, but where an event may be published again with more in it.
        """
        return self.event_id

    @property
    def traceparent(self) -> str | None:
        """W3C trace context of the event itself; None: it continues that of its cause."""
        return None

    @property
    def header_summary(self) -> Value | None:
        """What readers that need little of it get in a header, instead of its body; None: they read the body."""
        return None


class Cause(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The event that another one answers, as it is kept with a state until the answer is published."""

    event_id: str
    correlation_id: str
    """Id of the first event of the causal chain."""
    traceparent: str | None = None
    """W3C trace context of the event, if it had one."""


def cause_of(event: Message, before: Cause | None = None) -> Cause:
    """An event as what others follow from; `before`: its own cause, whose chain and trace it continues."""
    return Cause(
        event_id=event.event_id,
        correlation_id=before.correlation_id if before else event.event_id,
        traceparent=event.traceparent or (before.traceparent if before else None),
    )


T = TypeVar("T")


def named_id(*parts: object) -> str:
    """A UUIDv5 of `parts`: equal parts give equal ids, on any machine. A third of what `uuid.uuid5` costs."""
    text = "\x1f".join(map(str, parts)).encode()
    h = sha1(NAMESPACE.bytes + text, usedforsecurity=False).hexdigest()
    return f"{h[:8]}-{h[8:12]}-5{h[13:16]}-{'89ab'[int(h[16], 16) % 4]}{h[17:20]}-{h[20:32]}"


def encode(value: msgspec.Struct) -> bytes:
    """JSON without members that hold their default, keys in declaration order."""
    return msgspec.json.encode(value)


@overload
def decode(body: bytes | str, kind: type[T]) -> T: ...
@overload
def decode(body: bytes | str, kind: Any = Any) -> Any: ...
def decode(body: bytes | str, kind: Any = Any) -> Any:
    """Read JSON as `kind`, ignoring unknown members; without one as the JSON that it is. `Any`: a union is no `type`.

    Raises `msgspec.DecodeError` for everything that it is not, also for bytes that are no text and for what is nested
    without end; `msgspec.ValidationError`, which is one, on a type mismatch; what that one says may quote the value:
    see `mismatch`.
    """
    return _read(msgspec.json.decode, body, kind)


def unpack(body: bytes, kind: type[T]) -> T:
    """Read MessagePack as `kind`. Raises `msgspec.DecodeError`, as `decode` does."""
    return _read(msgspec.msgpack.decode, body, kind)


def mismatch(error: msgspec.DecodeError) -> tuple[str, str]:
    """What was expected, and where (`$.lines[0].price`; the whole is nothing): for logs, without the value itself."""
    own_words = "" if error.__cause__ is None else str(error.__cause__)
    text = str(error).removeprefix(own_words)
    place = _PLACE.search(text)
    reason = text[: place.start()] if place else text
    if isinstance(error, msgspec.ValidationError) and not _OF_THE_TYPE.match(reason):
        reason = "a value that its type does not have"
    return reason, place[1] if place else ""


def _read(decoder: Callable[..., Any], body: bytes | str, kind: Any) -> Any:
    """What msgspec raises for bad bytes is three errors of different families: here they become one."""
    try:
        return decoder(body, type=kind)
    except UnicodeError as error:
        raise msgspec.DecodeError("it holds a text that is no Unicode") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


JsonObject = dict[str, Any]
"""A free-form JSON object. `Any` because its members are its author's own."""
