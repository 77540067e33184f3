"""What the senders of telemetry share: the tool loop that each plays with its own SDK, and the plain OTLP exporter.

It runs in the environment of the senders, which has neither Ratchet nor its tests.
"""

from __future__ import annotations

import json
import os
from typing import Any

from opentelemetry import _logs, trace
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

PROVIDER, KEY, MODEL = os.environ["PROVIDER"], "a-key", "gpt-4.1-mini"
SYSTEM = "You answer customers of a shop."
ASKED = "task-parallel: look up K47 and K48 at once, then say where they are."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"order_id": {"type": "string"}},
    "required": ["order_id"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "look_up", "description": "Says where an order is.", "parameters": PARAMETERS}


def look_up(order_id: str) -> str:
    """Says where an order is."""
    return f"{order_id}-{'packed' if order_id == 'K47' else 'shipped'}"


def exporting() -> TracerProvider:
    """Spans and events go where `OTEL_EXPORTER_OTLP_ENDPOINT` says, as any application sends them."""
    resource = Resource.create({"service.name": "shop"})
    tracing = TracerProvider(resource=resource)
    tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracing)
    logging = LoggerProvider(resource=resource)
    logging.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    _logs.set_logger_provider(logging)
    return tracing


def flush() -> None:
    """Send what waits."""
    providers: list[Any] = [trace.get_tracer_provider(), _logs.get_logger_provider()]
    for provider in providers:
        provider.force_flush()


def openai_loop() -> str | None:
    """The loop by hand, with OpenAI's SDK."""
    import openai  # noqa: PLC0415 - not every environment has both

    client = openai.OpenAI(base_url=f"{PROVIDER}/v1", api_key=KEY)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    tools: list[Any] = [{"type": "function", "function": FUNCTION}]
    with trace.get_tracer("shop").start_as_current_span("answer a customer"):
        while True:
            answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, temperature=0.5)
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message)
            for call in message.tool_calls:
                result = look_up(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def anthropic_loop() -> str:
    """The loop by hand, with Anthropic's SDK."""
    import anthropic  # noqa: PLC0415 - not every environment has both

    client = anthropic.Anthropic(base_url=PROVIDER, api_key=KEY)
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    tools: list[Any] = [
        {"name": "look_up", "description": FUNCTION["description"], "input_schema": PARAMETERS},
    ]
    with trace.get_tracer("shop").start_as_current_span("answer a customer"):
        while True:
            answer = client.messages.create(
                model="claude", max_tokens=100, system=SYSTEM, messages=messages, tools=tools
            )
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in answer.content if block.type == "text")
            messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": look_up(**call.input)} for call in calls
            ]
            messages.append({"role": "user", "content": results})
