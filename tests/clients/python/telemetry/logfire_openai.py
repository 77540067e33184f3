"""Logfire's own instrumentations of OpenAI's and Anthropic's SDKs."""

import logfire
from sending import anthropic_loop, openai_loop

logfire.configure(send_to_logfire=False, service_name="shop", console=False)
logfire.instrument_openai()
logfire.instrument_anthropic()
openai_loop()
anthropic_loop()
logfire.force_flush()
