"""OpenInference's instrumentations of OpenAI's and Anthropic's SDKs, one after the other."""

from openinference.instrumentation.anthropic import AnthropicInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor
from sending import anthropic_loop, exporting, flush, openai_loop

exporting()
OpenAIInstrumentor().instrument()
AnthropicInstrumentor().instrument()
openai_loop()
anthropic_loop()
flush()
