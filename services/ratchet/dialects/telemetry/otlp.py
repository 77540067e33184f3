"""Requests of OTLP over HTTP in either encoding, as plain values: the spans and events that name a trace.

Protobuf and JSON say the same (opentelemetry-proto 1.x); JSON spells ids in hexadecimal and long integers as text.
Attributes that no dialect reads are left out at once.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.bus.json_values import count_values
from ratchet.bus.message import decode, mismatch
from ratchet.core.errors import BadRequest
from ratchet.dialects.foreign_values import with_whole_characters

Attributes = Mapping[str, Any]
"""Attributes by name. `Any`: senders write what they like."""
TRACES, LOGS = "traces", "logs"
PROTOBUF, JSON = "application/x-protobuf", "application/json"
MOST = 10_000
"""Spans, or log records, of one request: a recorder reads them within seconds. SDKs send 512, collectors 8,192."""
MOST_EVENTS = 100_000
"""Events of the spans of one request: those of 500 chats of 200 messages."""
MOST_ESCAPES = 1_000_000
"""Backslashes of a body in JSON that are looked through for halves of characters: a second of a recorder."""
DEEPEST = 32
"""Levels of an attribute's value; what lies deeper is left out."""
_READ = (
    *("gen_ai.", "llm.", "ai.", "openinference.", "traceloop.", "langfuse.", "pydantic_ai.", "input.", "output."),
    *("session.", "user.", "enduser.", "tool", "agent", "server.", "error.", "exception.", "event", "thread."),
    *("all_messages_events", "final_result", "model_request_parameters", "operation.cost", "logfire.span_type"),
    *("request_data", "response_data", "content", "role", "id", "index", "finish_reason", "message", "metadata"),
)
"""How the names of attributes begin that a dialect reads."""
_TRACE_ID, _SPAN_ID = re.compile(r"(?!0{32})[0-9a-f]{32}"), re.compile(r"(?!0{16})[0-9a-f]{16}")
_IS_REMOTE = 0x300
"""Flags of a span whose parent is known to be another process's: the context has the bit, and it is set."""
_FAILED = 2


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a span, within it or in a log record."""

    name: str
    at_ns: int
    attributes: Attributes
    body: Any = None


@dataclass(frozen=True, slots=True)
class RawSpan:
    """A span, or an event that came by itself: then it has no name and no end."""

    trace_id: str
    """Lower-case hexadecimal; empty where it is none."""
    span_id: str
    parent_span_id: str = ""
    name: str = ""
    start_ns: int = 0
    end_ns: int = 0
    attributes: Attributes = field(default_factory=dict[str, Any])
    events: Sequence[Event] = ()
    error: str | None = None
    """Why it failed, where its status says so."""
    is_entry: bool = False
    """Its parent is a span of another process."""
    service: str = ""
    scope: str = ""
    """What instrumented it."""

    @property
    def has_ids(self) -> bool:
        """Whether trace and span have ids that OTLP allows."""
        return bool(_TRACE_ID.fullmatch(self.trace_id) and _SPAN_ID.fullmatch(self.span_id))


def read_request(signal: str, content_type: str, body: bytes) -> list[RawSpan]:
    """The spans of a request, or its log records that may be events of spans. Raises `BadRequest`."""
    if content_type == JSON:
        return _bounded(_of_json(signal, body))
    request = ExportTraceServiceRequest() if signal == TRACES else ExportLogsServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise BadRequest(f"the body is no {type(request).__name__} in protobuf") from error
    return _bounded(_spans(request) if signal == TRACES else _records(request))


def _bounded(spans: Iterator[RawSpan]) -> list[RawSpan]:
    """The spans. Raises `BadRequest` for too many of them, or of their events."""
    read, events = list[RawSpan](), 0
    for span in spans:
        read.append(span)
        events += len(span.events)
        if len(read) > MOST:
            raise BadRequest(f"the request holds more than {MOST} spans or log records: send smaller batches")
        if events > MOST_EVENTS:
            raise BadRequest(f"the request holds more than {MOST_EVENTS} events of spans: send smaller batches")
    return read


def _spans(request: Any) -> Iterator[RawSpan]:
    """`Any`, here and below: protobuf's generated classes."""
    for resource in request.resource_spans:
        service = _service(_attributes(resource.resource.attributes, all_of_them=True))
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield RawSpan(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_span_id=span.parent_span_id.hex(),
                    name=span.name,
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    events=[
                        Event(event.name, event.time_unix_nano, _attributes(event.attributes)) for event in span.events
                    ],
                    error=_failure(span.status.code, span.status.message),
                    is_entry=_is_entry(span.flags),
                    service=service,
                    scope=scope.scope.name,
                )


def _records(request: Any) -> Iterator[RawSpan]:
    for resource in request.resource_logs:
        service = _service(_attributes(resource.resource.attributes, all_of_them=True))
        for scope in resource.scope_logs:
            for record in scope.log_records:
                attributes = _attributes(record.attributes)
                body = _value(record.body) if record.HasField("body") else None
                event = _event(record.event_name, record.time_unix_nano or record.observed_time_unix_nano, attributes)
                yield RawSpan(
                    trace_id=record.trace_id.hex(),
                    span_id=record.span_id.hex(),
                    events=[Event(event.name, event.at_ns, attributes, body)],
                    service=service,
                )


def _attributes(pairs: Iterable[Any], *, all_of_them: bool = False) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs if all_of_them or pair.key.startswith(_READ)}


def _value(value: Any, depth: int = DEEPEST) -> Any:
    kind = value.WhichOneof("value")
    if kind is None or depth == 0:
        return None
    if kind == "array_value":
        return [_value(item, depth - 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _value(pair.value, depth - 1) for pair in value.kvlist_value.values}
    return _plain(getattr(value, kind))


def _plain(value: Any) -> Any:
    """A single value as JSON has it: no bytes, and no number that is not finite."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if isinstance(value, Message) else value


def _event(name: str, at_ns: int, attributes: Attributes) -> Event:
    """`event.name` names it where the record's own member does not, as before OTLP 1.5."""
    named = attributes.get("event.name")
    return Event(name or (named if isinstance(named, str) else ""), at_ns, attributes)


def _service(attributes: Attributes) -> str:
    name = attributes.get("service.name")
    return name if isinstance(name, str) else ""


def _failure(code: int, message: str) -> str | None:
    return (message or "error") if code == _FAILED else None


def _is_entry(flags: int) -> bool:
    return flags & _IS_REMOTE == _IS_REMOTE


class _Pair(msgspec.Struct):
    key: str = ""
    value: dict[str, Any] | None = None


class _Resource(msgspec.Struct):
    attributes: list[_Pair] = []


class _Status(msgspec.Struct):
    code: int | str = 0
    message: str = ""


class _JsonEvent(msgspec.Struct, rename="camel"):
    name: str = ""
    time_unix_nano: int | str = 0
    attributes: list[_Pair] = []


class _JsonSpan(msgspec.Struct, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    name: str = ""
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: list[_Pair] = []
    events: list[_JsonEvent] = []
    status: _Status | None = None
    flags: int = 0


class _JsonRecord(msgspec.Struct, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    event_name: str = ""
    time_unix_nano: int | str = 0
    observed_time_unix_nano: int | str = 0
    attributes: list[_Pair] = []
    body: dict[str, Any] | None = None


class _ScopeName(msgspec.Struct):
    name: str = ""


class _Scope(msgspec.Struct, rename="camel"):
    scope: _ScopeName | None = None
    spans: list[_JsonSpan] = []
    log_records: list[_JsonRecord] = []


class _Part(msgspec.Struct, rename="camel"):
    resource: _Resource | None = None
    scope_spans: list[_Scope] = []
    scope_logs: list[_Scope] = []


class _Request(msgspec.Struct, rename="camel"):
    resource_spans: list[_Part] = []
    resource_logs: list[_Part] = []


def _of_json(signal: str, body: bytes) -> Iterator[RawSpan]:
    count_values(body)
    try:
        request = _decoded(body)
        for part in request.resource_spans if signal == TRACES else request.resource_logs:
            service = _service(_json_attributes(part.resource.attributes, all_of_them=True) if part.resource else {})
            for scope in part.scope_spans:
                name = scope.scope.name if scope.scope else ""
                yield from (_json_span(span, service, name) for span in scope.spans)
            for scope in part.scope_logs:
                yield from (_json_record(record, service) for record in scope.log_records)
    except msgspec.DecodeError as error:
        reason, place = mismatch(error)
        raise BadRequest(f"the body is no request of OTLP in JSON: {reason} {place}".rstrip()) from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise BadRequest("the body is no request of OTLP in JSON: a value is none of OTLP's") from error


def _decoded(body: bytes) -> _Request:
    try:
        return decode(body, _Request)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return decode(with_whole_characters(body, MOST_ESCAPES), _Request)


def _json_span(span: _JsonSpan, service: str, scope: str) -> RawSpan:
    status = span.status or _Status()
    code = _FAILED if status.code == "STATUS_CODE_ERROR" else int(status.code) if str(status.code).isdecimal() else 0
    return RawSpan(
        trace_id=span.trace_id.lower(),
        span_id=span.span_id.lower(),
        parent_span_id=(span.parent_span_id or "").lower(),
        name=span.name,
        start_ns=int(span.start_time_unix_nano),
        end_ns=int(span.end_time_unix_nano),
        attributes=_json_attributes(span.attributes),
        events=[
            Event(event.name, int(event.time_unix_nano), _json_attributes(event.attributes)) for event in span.events
        ],
        error=_failure(code, status.message),
        is_entry=_is_entry(span.flags),
        service=service,
        scope=scope,
    )


def _json_record(record: _JsonRecord, service: str) -> RawSpan:
    attributes = _json_attributes(record.attributes)
    at_ns = int(record.time_unix_nano) or int(record.observed_time_unix_nano)
    event = _event(record.event_name, at_ns, attributes)
    body = _json_value(record.body) if record.body is not None else None
    return RawSpan(
        trace_id=record.trace_id.lower(),
        span_id=record.span_id.lower(),
        events=[Event(event.name, at_ns, attributes, body)],
        service=service,
    )


def _json_attributes(pairs: Iterable[_Pair], *, all_of_them: bool = False) -> Attributes:
    return {
        pair.key: _json_value(pair.value)
        for pair in pairs
        if pair.value is not None and (all_of_them or pair.key.startswith(_READ))
    }


def _json_value(value: dict[str, Any], depth: int = DEEPEST) -> Any:
    """Raises `ValueError` and the like for what is no value of OTLP."""
    if not value or depth == 0:
        return None
    kind, held = next(iter(value.items()))
    if kind == "arrayValue":
        return [_json_value(item, depth - 1) for item in held.get("values") or ()]
    if kind == "kvlistValue":
        return {pair["key"]: _json_value(pair.get("value") or {}, depth - 1) for pair in held.get("values") or ()}
    if kind == "intValue":
        return int(held)
    if kind == "doubleValue":
        return _plain(float(held))
    return held if isinstance(held, str | bool) else None
