"""Spans that another project recorded of public agent frameworks and ships with its tests, as requests of OTLP.

`tests/data/third_party/README.md` names the source and its licence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "third_party" / "strands_agents_evals"
_CODES = {"UNSET": 0, "OK": 1, "ERROR": 2}


def names() -> list[str]:
    """What was recorded."""
    return sorted(path.name.removesuffix("_spans.json") for path in FOLDER.glob("*_spans.json"))


def ended_at(name: str) -> datetime:
    """When the last of its spans had ended."""
    return datetime.fromtimestamp(max(span["end_time"] for span in _recorded(name)) / 1e9 + 1, UTC)


def request_of(name: str) -> bytes:
    """The spans of a recording as their exporter would send them, in OTLP's JSON."""
    scopes = [{"scope": span["scope"], "spans": [_span(span)]} for span in _recorded(name)]
    return json.dumps({"resourceSpans": [{"scopeSpans": scopes}]}).encode()


def _recorded(name: str) -> list[dict[str, Any]]:
    recorded = json.loads((FOLDER / f"{name}_spans.json").read_text())
    return recorded["spans"] if isinstance(recorded, dict) else recorded


def _span(span: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "traceId": span["trace_id"],
        "spanId": span["span_id"],
        "parentSpanId": span["parent_span_id"],
        "name": span["name"],
        "startTimeUnixNano": str(span["start_time"]),
        "endTimeUnixNano": str(span["end_time"]),
        "attributes": _pairs(span["attributes"]),
        "status": {"code": _CODES[span["status"]["code"]]},
        "events": [
            {
                "name": event["event_name"],
                "timeUnixNano": str(event["timestamp"]),
                "attributes": _pairs(event["attributes"]),
            }
            for event in span["span_events"]
        ],
    }


def _pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    """A plain value as OTLP spells it."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"kvlistValue": {"values": _pairs(value)}} if isinstance(value, dict) else {"stringValue": value}
