"""Requests of OTLP in both encodings, and what is no request of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from ratchet.core.errors import BadRequest
from ratchet.dialects.telemetry.otlp import (
    DEEPEST,
    JSON,
    LOGS,
    MOST,
    MOST_EVENTS,
    PROTOBUF,
    TRACES,
    RawSpan,
    read_request,
)
from tests.support.telemetry import spelled, traced


def with_attribute(value: AnyValue) -> Any:
    """The value of an attribute, as a request in protobuf brings it."""
    request = traced("a").request
    request.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="gen_ai.x").value.CopyFrom(value)
    (span, _) = read_request(TRACES, PROTOBUF, request.SerializeToString())
    return span.attributes["gen_ai.x"]


def test_protobuf_and_json_say_the_same() -> None:
    trace = traced("a", calls=3)
    spans = read_request(TRACES, PROTOBUF, trace.protobuf)
    assert spans == read_request(TRACES, JSON, spelled(trace))
    assert [span.name for span in spans] == [*["chat gpt-4.1-mini"] * 3, "answer"]
    assert {(span.trace_id, span.service, span.has_ids) for span in spans} == {(trace.id, "shop", True)}


def test_json_spells_numbers_and_enumerations_in_several_ways() -> None:
    span = {
        "traceId": "4BF92F3577B34DA6A3CE929D0E0E4736",
        "spanId": "00F067AA0BA902B7",
        "endTimeUnixNano": 1793957400125000000,
        "status": {"code": "STATUS_CODE_ERROR", "message": "away"},
        "attributes": [
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "52"}},
            {"key": "gen_ai.request.temperature", "value": {"doubleValue": 0.5}},
            {"key": "gen_ai.x", "value": {"kvlistValue": {"values": [{"key": "on", "value": {"boolValue": True}}]}}},
            {"key": "gen_ai.y", "value": {}},
        ],
    }
    (read,) = read_request(TRACES, JSON, json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode())
    assert (read.trace_id, read.error, read.has_ids) == ("4bf92f3577b34da6a3ce929d0e0e4736", "away", True)
    assert read.attributes == {
        "gen_ai.usage.input_tokens": 52,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.x": {"on": True},
        "gen_ai.y": None,
    }


def test_attributes_that_no_dialect_reads_are_left_out() -> None:
    request = traced("a").request
    request.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="http.url").value.string_value = "x" * 100
    (span, _) = read_request(TRACES, PROTOBUF, request.SerializeToString())
    assert "http.url" not in span.attributes


def test_values_that_json_cannot_say_are_left_out() -> None:
    assert with_attribute(AnyValue(double_value=float("nan"))) is None
    assert with_attribute(AnyValue(bytes_value=b"\xff")) == "/w=="
    deep = AnyValue(string_value="bottom")
    for _ in range(DEEPEST + 5):
        deeper = AnyValue()
        deeper.array_value.values.append(deep)
        deep = deeper
    assert json.dumps(with_attribute(deep)) == "[" * DEEPEST + "null" + "]" * DEEPEST


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PROTOBUF, b"\xff\xff\xff"),
        (PROTOBUF, traced("a").protobuf[:-3]),
        (JSON, b"{"),
        (JSON, b"[]"),
        (JSON, b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "noon"}]}]}]}'),
        (
            JSON,
            b'{"resourceSpans": [{"resource": {"attributes": [{"key": "service.name", "value": {"intValue": []}}]}}]}',
        ),
        (JSON, b"[" * 100_000),
        (JSON, b'{"a":' * 50_000),
        (JSON, b"\xff\xfe"),
    ],
)
def test_what_is_no_request_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_request(TRACES, kind, body)


@pytest.mark.parametrize(
    "value",
    [
        {"arrayValue": "x"},
        {"arrayValue": {"values": ["x"]}},
        {"kvlistValue": {"values": [{}]}},
        {"kvlistValue": {"values": [{"key": "a", "value": 3}]}},
        {"intValue": None},
        {"doubleValue": {}},
    ],
)
def test_value_that_is_none_of_otlp_is_refused(value: dict[str, Any]) -> None:
    span = {"attributes": [{"key": "gen_ai.x", "value": value}]}
    with pytest.raises(BadRequest):
        read_request(TRACES, JSON, json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode())


def test_request_nested_without_end_is_refused() -> None:
    value = b""
    for _ in range(1000):
        value = member(5, member(1, value))  # an array of one value
    span = member(9, member(1, b"gen_ai.x") + member(2, value))
    with pytest.raises(BadRequest):
        read_request(TRACES, PROTOBUF, member(1, member(2, member(2, span))))


def member(number: int, content: bytes) -> bytes:
    """A member of a message in protobuf."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content


@pytest.mark.parametrize(
    ("trace_id", "span_id"),
    [("", ""), ("0" * 32, "1" * 16), ("1" * 32, "0" * 16), ("1" * 30, "1" * 16), ("g" * 32, "1" * 16)],
)
def test_ids_that_otlp_does_not_allow_are_none(trace_id: str, span_id: str) -> None:
    assert not RawSpan(trace_id, span_id).has_ids


def test_log_record_names_its_event_in_either_place() -> None:
    def record(**members: Any) -> bytes:
        return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [members]}]}]}).encode()

    named = {"key": "event.name", "value": {"stringValue": "gen_ai.choice"}}
    for body in (record(eventName="gen_ai.choice"), record(attributes=[named])):
        (span,) = read_request(LOGS, JSON, body)
        assert [event.name for event in span.events] == ["gen_ai.choice"]


def test_request_of_too_many_spans_is_refused_in_words() -> None:
    request = traced("a").request
    span = request.resource_spans[0].scope_spans[0].spans[-1]
    request.resource_spans[0].scope_spans[0].spans.extend([span] * MOST)
    with pytest.raises(BadRequest, match="more than 10000 spans"):
        read_request(TRACES, PROTOBUF, request.SerializeToString())


def test_request_of_too_many_events_is_refused_in_words() -> None:
    request = traced("a").request
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.events.extend([type(span).Event(name="gen_ai.choice")] * (MOST_EVENTS + 1))
    with pytest.raises(BadRequest, match="100000 events of spans: send smaller batches"):
        read_request(TRACES, PROTOBUF, request.SerializeToString())


def test_half_of_a_character_in_json_becomes_a_mark() -> None:
    body = spelled(traced("a", **{"gen_ai.agent.name": "half"})).replace(b'"half"', rb'"cut \ud83d"')
    (span, _) = read_request(TRACES, JSON, body)
    assert span.attributes["gen_ai.agent.name"] == "cut \ufffd"


def test_refusal_of_json_names_what_was_expected_and_where() -> None:
    with pytest.raises(BadRequest, match=r"Expected `array`, got `null` \$\.resourceSpans"):
        read_request(TRACES, JSON, b'{"resourceSpans": null}')
