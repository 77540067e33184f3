"""OpenTelemetry's instrumentation of OpenAI's SDK before the conventions of 1.37: an event for each message."""

from opentelemetry import _events, _logs
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk._events import EventLoggerProvider
from sending import exporting, flush, openai_loop

exporting()
_events.set_event_logger_provider(EventLoggerProvider(_logs.get_logger_provider()))
OpenAIInstrumentor().instrument()
openai_loop()
flush()
