"""OpenTelemetry's own instrumentations of OpenAI's and Anthropic's SDKs, in today's conventions."""

from opentelemetry.instrumentation.genai.anthropic import AnthropicInstrumentor
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from sending import anthropic_loop, exporting, flush, openai_loop

exporting()
OpenAIInstrumentor().instrument()
AnthropicInstrumentor().instrument()
openai_loop()
anthropic_loop()
flush()
