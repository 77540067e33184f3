"""Langfuse's SDK: its drop-in for OpenAI's, within an observation of a user's session."""

import json
import os

from langfuse import Langfuse, get_client, observe, propagate_attributes
from langfuse.openai import OpenAI
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from sending import ASKED, FUNCTION, KEY, MODEL, PROVIDER, SYSTEM, look_up

endpoint = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
Langfuse(public_key="pk", secret_key="sk", base_url=endpoint, span_exporter=OTLPSpanExporter())
client = OpenAI(base_url=f"{PROVIDER}/v1", api_key=KEY)


@observe(as_type="tool")
def looked_up(order_id: str) -> str:
    return look_up(order_id)


@observe(as_type="agent", name="clerk")
def answer() -> str | None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    while True:
        tools = [{"type": "function", "function": FUNCTION}]
        message = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = looked_up(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


with propagate_attributes(session_id="chat-7", user_id="mia"):
    answer()
get_client().flush()
