"""Telemetry as public SDKs sent it, recorded once, and what the gateway and the collector make of such requests."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ratchet.bus.clock import utc_now
from ratchet.bus.envelope import Sealer, unseal
from ratchet.core.contract import Spans, decode
from ratchet.core.service.contracts import load_contracts
from ratchet.dialects.telemetry.otlp import PROTOBUF
from ratchet.dialects.telemetry.span_tree import calls_of, tree_of
from ratchet.gateway.span_records import SpansJob, TakenSpans, take_spans
from ratchet.trajectory_collector.domain import Inference, Run
from ratchet.trajectory_collector.traces.folding import Folded, fold

SENT = Path(__file__).parents[1] / "data" / "telemetry"
VERSIONS = SENT / "versions.json"
"""Which versions of which packages sent it: `tests.clients.senders` records both."""
RECEIVED = datetime(2026, 11, 28, 18, tzinfo=UTC)
SEALER = Sealer(load_contracts(), "gateway", lambda: RECEIVED)


def sent(name: str) -> list[tuple[str, bytes]]:
    """The requests of a sender, in the order in which they came: signal and body."""
    paths = sorted(SENT.glob(f"{name}.*.bin"), key=lambda path: int(path.name.split(".")[1]))
    return [(path.name.split(".")[2], path.read_bytes()) for path in paths]


def job(body: bytes, signal: str = "traces", **changes: Any) -> SpansJob:
    """A request as the gateway hands it to a recorder."""
    plain = {
        "content_type": PROTOBUF,
        "received_at": RECEIVED,
        "host": "",
        "roles": {},
        "other_role": "default",
        "reported": ["default"],
        "rated": ["default"],
        "largest": 8 << 20,
    }
    return SpansJob(**{"signal": signal, "body": body, **plain, **changes})


def batches(taken: TakenSpans) -> list[Spans]:
    """The messages that a request became."""
    return [decode(unseal(record.headers, record.body), Spans) for record in taken.records]


def received(requests: Iterable[tuple[str, bytes]], **changes: Any) -> list[Spans]:
    """The messages that several requests became."""
    return [batch for signal, body in requests for batch in batches(take_spans(job(body, signal, **changes), SEALER))]


def folded(parts: Sequence[Spans], inference: Callable[[], Inference] = Inference) -> Folded:
    """What the parts of one trace add up to."""
    tree = tree_of(parts)
    return fold(parts[0].role, parts[0].trace_id, tree, calls_of(tree, frozenset()), inference(), Run([]))


@dataclass(frozen=True)
class Traced:
    """The telemetry of one run by the conventions: calls that continue one another, and their root."""

    id: str
    service: str
    spans: Sequence[Span]

    @property
    def protobuf(self) -> bytes:
        """The request in protobuf."""
        return self.request.SerializeToString()

    @property
    def request(self) -> ExportTraceServiceRequest:
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.append(_pair("service.name", self.service))
        resource.scope_spans.add().spans.extend(self.spans)
        return request

    def changed(self, *, span_id: str) -> Traced:
        """The same with other span ids."""
        spans = [Span.FromString(span.SerializeToString()) for span in self.spans]
        for span in spans:
            span.span_id = bytes.fromhex(span_id)
        return replace(self, spans=spans)

    def evaluation(self, name: str, value: float, label: str | None = None) -> bytes:
        """A log record in JSON with an evaluation of the first call."""
        attributes = [
            {"key": "gen_ai.evaluation.name", "value": {"stringValue": name}},
            {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": value}},
        ]
        if label is not None:
            attributes.append({"key": "gen_ai.evaluation.score.label", "value": {"stringValue": label}})
        record = {
            "traceId": self.id,
            "spanId": self.spans[0].span_id.hex(),
            "eventName": "gen_ai.evaluation.result",
            "timeUnixNano": str(_ns(utc_now())),
            "attributes": attributes,
        }
        return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode()


def traced(
    name: str, calls: int = 1, *, since: int = 0, content: bool = True, service: str = "shop", **attributes: str
) -> Traced:
    """A run named so: `calls` of one conversation, of which only those from `since` on, with the root, are sent.

    `attributes`: further ones of each call.
    """
    trace_id = hashlib.sha256(name.encode()).digest()[:16]
    began, root = _ns(utc_now()) - 10**9, hashlib.sha256(f"{name} root".encode()).digest()[:8]
    chat: list[Any] = [_message("user", f"task {name}")]
    spans: list[Span] = []
    for number in range(calls):
        answer = _message("assistant", f"answer {number}")
        named = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-4.1-mini",
            **attributes,
            **(
                {"gen_ai.input.messages": json.dumps(chat), "gen_ai.output.messages": json.dumps([answer])}
                if content
                else {}
            ),
        }
        spans.append(
            Span(
                trace_id=trace_id,
                span_id=hashlib.sha256(f"{name} {number}".encode()).digest()[:8],
                parent_span_id=root,
                name="chat gpt-4.1-mini",
                start_time_unix_nano=began + number * 10**6,
                end_time_unix_nano=began + number * 10**6 + 500_000,
                attributes=[_pair(key, value) for key, value in named.items()],
            )
        )
        chat += [answer, _message("user", f"and {number}?")]
    top = Span(
        trace_id=trace_id, span_id=root, name="answer", start_time_unix_nano=began, end_time_unix_nano=began + 10**9
    )
    return Traced(trace_id.hex(), service, [*spans[since:], top])


def spelled(trace: Traced) -> bytes:
    """The request in OTLP's JSON: ids in hexadecimal."""
    written = json_format.MessageToDict(trace.request)
    for resource in written["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for member in ("traceId", "spanId", "parentSpanId"):
                    if member in span:
                        span[member] = base64.b64decode(span[member]).hex()
    return json.dumps(written).encode()


def _message(role: str, text: str) -> Any:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _pair(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1e6) * 1000
