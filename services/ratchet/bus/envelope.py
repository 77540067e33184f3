"""CloudEvents 1.0 in NATS headers (binary mode): what is said about a message, beside its body.

Source: CloudEvents NATS protocol binding 1.0, section 3.1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import msgspec
import zstandard

from ratchet.bus.contracts import Contracts
from ratchet.bus.message import Message
from ratchet.bus.received import Causing, Received
from ratchet.bus.schemas import SCHEMA_ID, handleable
from ratchet.core.errors import InvalidMessage

COMPRESS_ABOVE = 16_384
"""Bodies larger than this many bytes travel as zstd."""
MAX_BODY = 64 * 1024 * 1024
"""Refuse to unpack more than this many bytes: a small message can hold a huge body."""

REFERENCE = "ratchet-body"
"""Header of a message without a body, which a store of bodies keeps: its SHA-256, and its bytes as on the wire."""
REFER_ABOVE = 512 * 1024
"""A broker holds larger bodies in memory several times over while it stores and sends them."""
_REFERENCE = re.compile(r"([0-9a-f]{64}) ([1-9][0-9]{0,8})")

MAX_ID = 256
"""Characters of an event id that comes in a header: ids are keys in tables, and hundreds of them go into one query."""

SUMMARY = "ratchet-summary"
"""Header with a message's `header_summary` as JSON."""

REDACTED_BY = "ratchet-redacted"
"""Header with the digest of the rules by which secrets were taken out of the message before it was published."""

HEADER_ROOM = 256
"""Bytes that publishing adds to a message's own headers (those of atomic batches)."""

Headers = dict[str, str]


class Reference(NamedTuple):
    """The body that a message refers to."""

    sha256: str
    size: int
    """Bytes, as on the wire: packed, where its headers say so."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One message as it goes to the broker."""

    subject: str
    headers: Headers
    body: bytes

    @property
    def size(self) -> int:
        """Bytes of headers and body."""
        return wire_size(self.headers, self.body)

    def referring(self) -> tuple[Record, Reference]:
        """The same event, which refers to its body instead of holding it."""
        reference = Reference(hashlib.sha256(self.body).hexdigest(), len(self.body))
        headers = {**self.headers, REFERENCE: f"{reference.sha256} {reference.size}"}
        return Record(self.subject, headers, b""), reference

    def with_message_id(self, message_id: str) -> Record:
        """The same event under another key of the broker's deduplication: it is stored once more."""
        return msgspec.structs.replace(self, headers={**self.headers, "Nats-Msg-Id": message_id})


@dataclass(frozen=True, slots=True)
class Sealer:
    """Makes records of messages: checked by their contracts, with headers, compressed where that pays."""

    contracts: Contracts
    source: str
    """Name of the program that publishes."""
    now: Callable[[], datetime]
    rules: str = ""
    """Digest of the rules by which the program has redacted what it seals; empty where it has not."""

    def seal(self, message: Message, cause: Causing | None = None) -> Record:
        """`cause` is the event that this one follows from. Raises `UnknownSubject` or `InvalidMessage`."""
        body = self.contracts.check_strict(message)
        summary = self.contracts.check_strict_summary(message)
        topic = self.contracts.topic_of(message.subject)
        schema = f"{SCHEMA_ID}{topic.schema}" if topic.schema else ""
        source = source_of(self.source)
        with handleable():
            headers, wire = enveloped(message, body, source=source, schema=schema, now=self.now(), cause=cause)
            event_id_of(headers, message)
            if summary is not None:
                headers[SUMMARY] = summary.decode()
            if topic.redacted and self.rules:
                headers[REDACTED_BY] = self.rules
            record = Record(message.subject, headers, wire)
            _ = record.size  # headers are text that can be sent
        return record


def source_of(program: str) -> str:
    """What the header `ce-source` says of a program's messages."""
    return f"urn:ratchet:{program}"


def enveloped(
    message: Message, body: bytes, *, source: str, schema: str, now: datetime, cause: Causing | None
) -> tuple[Headers, bytes]:
    """Headers and body as they go on the wire. Of the cause they repeat nothing long: the broker bounds headers."""
    event_id = message.event_id
    cause = cause.as_cause() if isinstance(cause, Received) else cause
    root = event_id if cause is None else cause.correlation_id
    if cause is not None and len(root) > MAX_ID:
        root = cause.event_id
    headers = {
        "Nats-Msg-Id": message.repetition_id,
        "ce-specversion": "1.0",
        "ce-id": event_id,
        "ce-type": message.TOPIC,
        "ce-source": source,
        "ce-time": now.isoformat().replace("+00:00", "Z"),
        "ce-correlationid": root,
        "content-type": "application/json",
    }
    if schema:
        headers["ce-dataschema"] = schema
    if cause is not None:
        headers["ce-causationid"] = cause.event_id
    traceparent = message.traceparent or (cause.traceparent if cause is not None else None)
    if traceparent is not None and len(traceparent) <= MAX_ID:
        headers["traceparent"] = traceparent
    if len(body) > COMPRESS_ABOVE:
        headers["content-encoding"] = "zstd"
        body = zstandard.compress(body)
    return headers, body


def reference_of(headers: Mapping[str, str] | None) -> Reference | None:
    """What a message refers to; None where it has a body of its own, or names none that could be."""
    match = _REFERENCE.fullmatch((headers or {}).get(REFERENCE, ""))
    return Reference(match[1], int(match[2])) if match else None


def unseal(headers: Headers, body: bytes) -> bytes:
    """The plain body. Raises `InvalidMessage` if it cannot be unpacked, or lies elsewhere still."""
    if REFERENCE in headers:
        raise InvalidMessage(f"no body was kept that fits its {REFERENCE}: {headers[REFERENCE][:MAX_ID]}")
    encoding = headers.get("content-encoding")
    if encoding is None:
        return body
    if encoding != "zstd":
        raise InvalidMessage("unknown content-encoding")
    try:
        size = zstandard.frame_content_size(body)
        if size >= 0:  # our own say it: a buffer for all that there may be costs ten times as much as the unpacking
            plain = zstandard.ZstdDecompressor().decompress(body) if size <= MAX_BODY else b""
        else:
            with zstandard.ZstdDecompressor().stream_reader(body) as reader:
                plain = reader.read(MAX_BODY + 1)
    except zstandard.ZstdError as error:
        raise InvalidMessage(f"body is not zstd: {error}") from error
    if max(size, len(plain)) > MAX_BODY:
        raise InvalidMessage(f"body is larger than {MAX_BODY} bytes")
    return plain


def wire_size(headers: Mapping[str, str] | None, body: bytes) -> int:
    """Bytes of headers and body as the broker counts them against its largest payload."""
    if not headers:
        return len(body)
    text = "".join([*headers, *headers.values()])
    return len(body) + len(text.encode()) + 4 * len(headers) + 12


def plain_size(headers: Mapping[str, str] | None, body: bytes) -> int:
    """Bytes that a body unpacks to, as far as that can be said without unpacking it: as much as it may, otherwise."""
    if headers and REFERENCE in headers:
        return MAX_BODY
    if not headers or headers.get("content-encoding") != "zstd":
        return len(body)
    try:
        size = zstandard.frame_content_size(body)
    except zstandard.ZstdError:
        return len(body)  # cannot be unpacked at all
    return size if 0 <= size <= MAX_BODY else MAX_BODY


def event_id_of(headers: Headers, message: Message) -> str:
    """The event's id: the publisher's word, else what follows from the body. Raises `InvalidMessage` for no id."""
    event_id = headers.get("ce-id") or headers.get("Nats-Msg-Id") or message.event_id
    if len(event_id) > MAX_ID:
        raise InvalidMessage(f"the event id is longer than {MAX_ID} characters")
    return event_id
